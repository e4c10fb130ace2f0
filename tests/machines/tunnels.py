"""A service on a machine that a tunnel leads to, and a member that has it."""

from gpuaas_contract.instances import Member, MemberStatus
from tests.machines.controller import App

# Speaks as `tests.support.tcp_services.Service` does: answers when the other side has said that no more follows.
TALK = """printf "hello\\\\n"; tee /tmp/heard.$$ | sha256sum | cut -c 1-64; cat /tmp/heard.$$; rm /tmp/heard.$$"""


def start_service(port: int, address: str = "0.0.0.0") -> str:
    """A script that has systemd listen on the port."""
    return f"""
cat > /run/systemd/system/voice.socket <<'END'
[Socket]
ListenStream={address}:{port}
Accept=yes
END
cat > /run/systemd/system/voice@.service <<'END'
[Service]
StandardInput=socket
StandardOutput=socket
ExecStart=/bin/sh -c '{TALK.replace("%", "%%").replace("$$", "$$$$")}'
END
systemctl daemon-reload
systemctl start voice.socket
"""


STOP_SERVICE = "systemctl stop voice.socket; rm /run/systemd/system/voice*; systemctl daemon-reload"


async def made_ready(app: App) -> Member:
    """The app's one member, which its controller calls ready."""
    (operation,) = [op async for op in app.client.operations.list(instance_id=app.instance.id)]
    claim = await app.client.operations.claim(operation.id, "test")
    (member,) = [member async for member in app.client.instances.members(app.instance.id)]
    ready = {member.id: MemberStatus.READY}
    await app.client.operations.complete(operation.id, claim.fencing_token, member_statuses=ready)
    return member
