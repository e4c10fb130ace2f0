"""The SSH certificate authority that a project's machines trust."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.options import DEFAULTS, WAIT_SECONDS, Options, Timeout, Wait, Yes, noun
from gpuaas_cli.prompts import confirm
from gpuaas_cli.session import Session, open_session

if TYPE_CHECKING:
    from gpuaas_contract.ssh_authorities import SshAuthority

app = noun(__name__, __doc__)

OfTenant = Annotated[str | None, Parameter(name="--tenant", help="Of this tenant's own machines.")]


async def _owner(session: Session, tenant: str | None) -> str:
    return (await resolve.tenant(session, tenant)).id if tenant else await session.project_id()


def _show(authority: "SshAuthority") -> None:
    if output.document(authority):
        return
    output.table(
        [[str(v.version), v.state, v.fingerprint, output.text(v.created_at)] for v in authority.versions],
        ["version", "state", "fingerprint", "created"],
    )
    if authority.waiting:
        output.heading("Machines that do not have the last change yet")
        output.table([[m.name, m.reason] for m in authority.waiting], ["machine", "reason"])


@app.command
async def show(*, tenant: OfTenant = None, options: Options = DEFAULTS) -> None:
    """Show the keys, and the machines that do not have the last change yet."""
    async with open_session(options) as session:
        _show(await session.client.ssh_authorities.get(await _owner(session, tenant)))


@app.command
async def rotate(
    *,
    tenant: OfTenant = None,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Add a new key. Machines trust both until the old one is retired.

    ```
    gpuaas ssh-authority rotate --wait
    gpuaas ssh-authority retire
    ```
    """
    async with open_session(options) as session:
        owner = await _owner(session, tenant)
        authority = await session.client.ssh_authorities.rotate(owner)
        if wait:
            authority = await _wait_for_machines(session, authority, timeout)
    _show(authority)
    if len([version for version in authority.versions if version.state == "active"]) > 1:
        output.note("Both keys are valid. Once no machine is waiting: gpuaas ssh-authority retire")


async def _wait_for_machines(session: Session, authority: "SshAuthority", timeout: float) -> "SshAuthority":
    from gpuaas_cli.waiting import poll

    scope = {"tenant_id": authority.tenant_id} if authority.project_id is None else {"project_id": authority.project_id}
    async for _ in poll(session, "the change of the SSH authority", timeout, **scope):
        authority = await session.client.ssh_authorities.get(authority.owner_id)
        if not authority.waiting:
            break
    return authority


@app.command
async def retire(
    *,
    tenant: OfTenant = None,
    force: Annotated[
        bool, Parameter(negative="", help="Retire although machines lack the new key: they will let nobody in.")
    ] = False,
    yes: Yes = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Retire the old key: it is destroyed, and its certificates stop working."""
    async with open_session(options) as session:
        owner = await _owner(session, tenant)
        confirm("Retire the old key of the SSH authority?", "retire", yes=yes)
        authority = await session.client.ssh_authorities.retire(owner, force=force)
        if wait:
            authority = await _wait_for_machines(session, authority, timeout)
    _show(authority)
