"""Machines as a person sees them, beside the controller."""

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


class Person:
    """Logs in with a certificate of its own; the key lives as long as this."""

    def __init__(self, client: GpuaasClient) -> None:
        self._client = client

    async def run(self, allocation_id: str, command: str) -> str:
        key = asyncssh.generate_private_key("ssh-ed25519")
        grant = await self._client.allocations.access(allocation_id, key.export_public_key().decode().strip())
        machine = next(m for m in grant.machines if m.allocation_id == allocation_id)
        connection = await open_connection(self._client, grant, machine, key)
        try:
            answer = await connection.run(command, b"")
        finally:
            await connection.close()
        return answer.stdout.decode(errors="replace")

    async def what_is_there(self, allocation_id: str) -> set[str]:
        return set((await self.run(allocation_id, WHAT_IS_THERE)).splitlines())
