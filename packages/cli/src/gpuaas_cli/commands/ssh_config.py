"""Configure OpenSSH, so that plain ssh, scp, rsync and editors reach machines by name."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, saved_access
from gpuaas_cli.machine_access import find_machine, machine_of, proxy_command, ssh_settings
from gpuaas_cli.options import DEFAULTS, Options
from gpuaas_cli.session import Session, open_session

if TYPE_CHECKING:
    from gpuaas_contract.access import AccessGrant

SUFFIX = "gpuaas"
INCLUDE = "Include gpuaas/config"


async def ssh_config(
    *machines: Annotated[str, Parameter(help="Names or ids; default: all machines you have a grant on.")],
    print_only: Annotated[
        bool, Parameter(name="--print", negative="", help="Print to standard output; write no file.")
    ] = False,
    options: Options = DEFAULTS,
) -> None:
    """Let plain ssh, scp, rsync and editors reach machines as NAME.gpuaas.

    Writes ~/.ssh/gpuaas/config and includes it in ~/.ssh/config. Certificates are renewed while you are logged in
    and have access; hosts are verified by their certificates.

    ```
    gpuaas ssh-config one two
    ssh one.gpuaas
    scp data.tar one.gpuaas:
    rsync -a src/ two.gpuaas:src/
    ```
    """
    async with open_session(options) as session:
        wanted = [await find_machine(session, machine) for machine in machines]
        if not wanted:
            wanted = [grant.allocation_id async for grant in session.client.grants.own() if grant.status == "active"]
        context = session.target.name if session.target.context is not None else "-"
        blocks = [await _block(session, allocation_id, context) for allocation_id in dict.fromkeys(wanted)]
    if not blocks:
        output.note("You have no grants. Name a machine that you administer: gpuaas ssh-config MACHINE")
        return
    text = "".join(blocks)
    if print_only:
        print(text, end="")
        return
    where = _write(text)
    output.note(f"Wrote {where}. Next: ssh NAME.{SUFFIX}")


async def _block(session: Session, allocation_id: str, context: str) -> str:
    access: AccessGrant = await saved_access.renew(session, allocation_id, context)
    hostname = machine_of(access, allocation_id).hostname
    renew = shlex.join([sys.executable, "-m", "gpuaas_cli.saved_access", allocation_id, context])
    settings = ssh_settings(
        saved_access.directory(),
        access,
        allocation_id,
        name=saved_access.name_of(allocation_id, context),
        proxy=proxy_command("--saved", allocation_id, context),
    )
    escaped = renew.replace("%", "%%").replace('"', '\\"')
    lines = [f'Match originalhost {hostname}.{SUFFIX},{allocation_id}.{SUFFIX} exec "{escaped}"']
    lines += [f"    {key} {value}" for key, value in settings.items()]
    return "\n".join(lines) + "\n\n"


def _write(text: str) -> Path:
    """Write our file, and one line at the top of the person's own: the first value that ssh finds counts."""
    target = saved_access.directory() / "config"
    target.write_text(f"# Written by `gpuaas ssh-config`, which overwrites it.\n\n{text}")
    target.chmod(0o600)
    own = Path.home() / ".ssh" / "config"
    present = own.read_text() if own.exists() else ""
    if INCLUDE not in present.splitlines():
        own.write_text(f"{INCLUDE}\n\n{present}" if present else f"{INCLUDE}\n")
        own.chmod(0o600)
    return target
