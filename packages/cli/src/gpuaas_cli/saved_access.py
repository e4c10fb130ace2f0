"""Certificates that outlive one call, for plain ssh: kept beside a key of ours, and renewed before they end.

`gpuaas ssh-config` writes a configuration for OpenSSH that runs this module before each connection (`Match exec`),
and names `ssh_proxy` as its ProxyCommand. Both find here what the platform said last.
"""

import asyncio
import json
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuaas_cli.options import Options
    from gpuaas_cli.session import Session
    from gpuaas_contract.access import AccessGrant

RENEW_BEFORE = timedelta(seconds=60)
LIFETIME_SECONDS = 900


def directory() -> Path:
    """Return our directory below ~/.ssh, readable by its owner only."""
    path = Path(os.environ.get("GPUAAS_SSH_DIR") or Path.home() / ".ssh" / "gpuaas")
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    return path


def name_of(allocation_id: str, context: str) -> str:
    return f"{context}-{allocation_id}"


def saved_id(allocation_id: str, context: str) -> str:
    """Return the id of the newest saved access."""
    return str(_load(allocation_id, context)["id"])


def _load(allocation_id: str, context: str) -> dict[str, str]:
    file = directory() / f"{name_of(allocation_id, context)}.json"
    try:
        found: dict[str, str] = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return found


def is_fresh(allocation_id: str, context: str) -> bool:
    ends = _load(allocation_id, context).get("expires_at")
    return ends is not None and datetime.fromisoformat(ends) - datetime.now(UTC) > RENEW_BEFORE


async def renew(session: "Session", allocation_id: str, context: str) -> "AccessGrant":
    from gpuaas_cli.machine_access import make_key, write_certificate

    place = directory()
    public = place / "key.pub"
    public_key = public.read_text().strip() if public.exists() else make_key(place)
    access = await session.client.allocations.access(allocation_id, public_key, lifetime_seconds=LIFETIME_SECONDS)
    name = name_of(allocation_id, context)
    write_certificate(place, access, allocation_id, name)
    kept = {"id": access.id, "login": access.login, "expires_at": access.expires_at.isoformat()}
    (place / f"{name}.json").write_text(json.dumps(kept))
    return access


def options_for(context: str) -> "Options":
    from gpuaas_cli.options import Options

    # Without a context, the environment is used: GPUAAS_API_URL and GPUAAS_TOKEN.
    return Options(context=context if context != "-" else None)


async def _renew_in_session(allocation_id: str, context: str) -> None:
    from gpuaas_cli.session import open_session

    async with open_session(options_for(context)) as session:
        await renew(session, allocation_id, context)


def main() -> None:
    """Run as `Match exec`: exit with 0 where there is a valid certificate, so that ssh uses the block."""
    allocation_id, context = sys.argv[1:3]
    if is_fresh(allocation_id, context):
        return
    from gpuaas_cli.errors import report

    try:
        asyncio.run(_renew_in_session(allocation_id, context))
    except Exception as error:  # noqa: BLE001 - the edge
        sys.exit(report(error))


if __name__ == "__main__":
    main()
