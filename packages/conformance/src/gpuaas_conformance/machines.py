"""Machines as a person sees them, beside the controller."""

import hashlib
import shlex

import asyncssh

from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.machines.connection import open_connection

_NOT_LOOKED_AT = (
    "/var/lib/gpuaas*",
    "/var/lib/systemd/*",
    "/var/log/*",
    "/var/cache/*",
    "/var/tmp/*",  # noqa: S108 - a place that is not looked at
    "/var/lib/dpkg/*",
    "/var/lib/ucf/*",
    "*-",
    "*/.pwd.lock",
)
WHAT_IS_THERE = (
    "getent passwd | sort; getent group | sort; systemctl list-unit-files --no-legend --no-pager; "
    "sudo ss -Hltnu | awk '{print $1, $5}' | sort; sudo find /etc /usr /opt /srv /home /root /var -xdev "
    + " ".join(f"-not -path '{path}'" for path in _NOT_LOOKED_AT)
    + " | sort"
)
"""Users, units, ports and files; not logs, caches, and the books that the system keeps about itself."""
_CHANGED_FILES = (
    "find /etc /usr /opt /srv /home /root /var -xdev \\( -type f -o -type l \\) -newerct @{since} "
    + " ".join(f"-not -path '{path}'" for path in _NOT_LOOKED_AT)
)
# As a user who may do nothing: what it can read, everybody on the machine can. The values come over standard input into
# a file of that user's in memory, never into an argument.
_READABLE = """
cd /
umask 077
values=$(mktemp /dev/shm/gpuaas-conformance.XXXXXXXX)
trap 'rm -f "$values"' EXIT
cat >"$values"
new() {{
    find / /run /tmp /dev/shm -xdev -path /proc -prune -o -type f -newerct @{since} -size -{kib}k -readable \
        ! -path "$values" -print0 2>/dev/null || true
}}
if [ -s "$values" ]; then new | xargs -0 -r grep -lsF -f "$values" | sed 's/^/text /' || true; fi
new | xargs -0 -r sha256sum 2>/dev/null || true
"""
_LARGEST_KIB = 1024


class Person:
    """Logs in with a certificate of its own; the key lives as long as this."""

    def __init__(self, client: GpuaasClient) -> None:
        self._client = client

    async def run(self, allocation_id: str, command: str, content: bytes = b"") -> str:
        key = asyncssh.generate_private_key("ssh-ed25519")
        grant = await self._client.allocations.access(allocation_id, key.export_public_key().decode().strip())
        machine = next(m for m in grant.machines if m.allocation_id == allocation_id)
        connection = await open_connection(self._client, grant, machine, key)
        try:
            answer = await connection.run(command, content)
        finally:
            await connection.close()
        return answer.stdout.decode(errors="replace")

    async def what_is_there(self, allocation_id: str) -> set[str]:
        return set((await self.run(allocation_id, WHAT_IS_THERE)).splitlines())

    async def run_as_root(self, allocation_id: str, script: str) -> str:
        return await self.run(allocation_id, "sudo bash -eu", script.encode())

    async def time_there(self, allocation_id: str) -> int:
        """By the machine's own clock, in whole seconds."""
        return int(await self.run(allocation_id, "date +%s"))

    async def changed_files(self, allocation_id: str, since: int) -> str:
        """Lines with time, owner and path of every file that was changed since then, and is still there."""
        find = _CHANGED_FILES.format(since=since)
        return await self.run_as_root(allocation_id, f"{find} -printf '%C@ %U %p\\n' || true\n")

    async def journal(self, allocation_id: str, since: int) -> str:
        """Each line begins with its time."""
        return await self.run(allocation_id, f"sudo journalctl --no-pager -o short-unix --since @{since}")

    async def readable_by_all(self, allocation_id: str, values: set[str], contents: set[bytes], since: int) -> set[str]:
        """Paths of files, changed since then, that hold one of the values or are one of the contents, and that any user
        of the machine can read."""
        lines = sorted({line for value in values for line in value.splitlines() if _tells(line)})
        script = _READABLE.format(since=since, kib=_LARGEST_KIB)
        said = await self.run(
            allocation_id,
            f"sudo -u nobody bash -c {shlex.quote(script)}",
            "".join(f"{line}\n" for line in lines).encode(),
        )
        digests = {hashlib.sha256(content + end).hexdigest() for content in contents for end in (b"", b"\n")}
        found = set()
        for kind, _, path in (line.partition(" ") for line in said.splitlines()):
            if kind == "text" or kind in digests:
                found.add(path.strip())
        return found


def _tells(line: str) -> bool:
    """Whether only this secret has such a line: the frame of a key is the same for every key."""
    return len(line) >= 8 and not line.startswith("-----")
