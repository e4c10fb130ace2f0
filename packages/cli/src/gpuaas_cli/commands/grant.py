"""People's own users on machines."""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.errors import USAGE, WORK_FAILED, CliError
from gpuaas_cli.inputs import merge
from gpuaas_cli.options import DEFAULTS, WAIT_SECONDS, FromFile, Options, Timeout, Wait, Yes, noun
from gpuaas_cli.prompts import confirm
from gpuaas_cli.session import Session, open_session

if TYPE_CHECKING:
    from gpuaas_contract.grants import Grant

app = noun(__name__, __doc__)

_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def _show(grant: "Grant") -> None:
    output.one(
        grant,
        {
            "machine": grant.allocation_name,
            "person": grant.email,
            "login": grant.login,
            "uid": str(grant.uid),
            "sudo": grant.sudo,
            "remote_forwarding": grant.remote_forwarding,
            "status": grant.status,
            "reason": grant.reason,
            "expires": grant.expires_at,
            "ended": grant.ended_at,
            "id": grant.id,
        },
    )


def _parse_time(text: str) -> datetime:
    """Parse `8h`, `30m` or `14d` from now, or an ISO 8601 time."""
    if text[-1:] in _UNITS and text[:-1].isdigit():
        return datetime.now(UTC) + timedelta(**{_UNITS[text[-1]]: int(text[:-1])})
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise CliError(
            f"cannot read the time {text!r}", USAGE, hint="--expires 8h, or --expires 2030-01-31T12:00:00Z"
        ) from None


@app.command
async def create(
    machine: str,
    person: Annotated[
        str | None, Parameter(help="E-mail or id of a person with a role in the machine's tenant.")
    ] = None,
    /,
    *,
    sudo: Annotated[bool | None, Parameter(negative="", help="Allow sudo.")] = None,
    remote_forwarding: Annotated[
        bool | None,
        Parameter(negative="", help="Allow `ssh -R`, which leads out of the machine's network."),
    ] = None,
    expires: Annotated[str | None, Parameter(help="When it expires: 30m, 8h, 14d, or a time.")] = None,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    from_file: FromFile = None,
    options: Options = DEFAULTS,
) -> None:
    """Give a person a user of their own on a machine.

    ```
    gpuaas grant create one ada@example.org --wait
    gpuaas grant create one bob@example.org --sudo --expires 8h
    ```
    """
    fields = merge(from_file, sudo=sudo, remote_forwarding=remote_forwarding)
    if person is not None:
        fields.pop("email" if person.startswith("usr_") else "user_id", None)
        fields["user_id" if person.startswith("usr_") else "email"] = person
    if expires is not None:
        fields["expires_at"] = _parse_time(expires)
    async with open_session(options) as session:
        from gpuaas_contract.grants import GrantCreate

        body = GrantCreate.model_validate(fields)
        found = await resolve.allocation(session, machine)
        made = await session.client.grants.create(
            found.id,
            body.user_id or body.email or "",
            sudo=body.sudo,
            remote_forwarding=body.remote_forwarding,
            expires_at=body.expires_at,
        )
        if wait:
            made = await _wait_until_applied(session, made, timeout)
    _show(made)
    if made.status == "pending":
        output.note(f"The machine is creating the user. Then: gpuaas ssh {made.allocation_name}")


async def _wait_until_applied(session: Session, grant: "Grant", timeout: float) -> "Grant":
    """Wait until the machine has applied the grant or failed to."""
    from gpuaas_cli.waiting import poll

    what = f"the grant of {grant.email} on {grant.allocation_name}"
    async for _ in poll(session, what, timeout, tenant_id=grant.tenant_id, project_id=grant.project_id):
        grant = await session.client.grants.get(grant.id)
        if grant.status not in {"pending", "revoking"}:
            break
    if grant.status == "failed":
        raise CliError(f"machine {grant.allocation_name} could not apply the grant: {grant.reason}", WORK_FAILED)
    return grant


@app.command(name="list")
async def list_(
    machine: str | None = None,
    /,
    *,
    own: Annotated[bool, Parameter(negative="", help="Your own grants on all machines.")] = False,
    all: Annotated[bool, Parameter(negative="", help="Also ended ones.")] = False,
    options: Options = DEFAULTS,
) -> None:
    """List the grants on a machine, or your own (--own).

    ```
    gpuaas grant list one
    gpuaas grant list --own
    ```
    """
    if own == (machine is not None):
        raise CliError(
            "give either a machine or --own", USAGE, hint="gpuaas grant list MACHINE, or: gpuaas grant list --own"
        )
    async with open_session(options) as session:
        if machine is None:
            found = await session.client.grants.own().all()
        else:
            found = await session.client.grants.list((await resolve.allocation(session, machine)).id).all()
    found = [grant for grant in found if all or grant.status not in {"revoked"}]
    columns = {
        "machine": lambda g: g.allocation_name,
        "person": lambda g: g.email,
        "login": lambda g: g.login,
        "sudo": lambda g: g.sudo,
        "status": lambda g: g.status,
        "expires": lambda g: g.expires_at,
        "id": lambda g: g.id,
    }
    output.items(found, columns, empty="No grants.")


@app.command
async def show(grant: str, /, *, options: Options = DEFAULTS) -> None:
    """Show one grant, by id."""
    async with open_session(options) as session:
        _show(await session.client.grants.get(grant))


@app.command
async def revoke(
    grant: str, /, *, yes: Yes = False, wait: Wait = False, timeout: Timeout = WAIT_SECONDS, options: Options = DEFAULTS
) -> None:
    """Revoke a grant: its connections end at once and the machine removes its access."""
    confirm(f"Revoke {grant}?", grant, yes=yes)
    async with open_session(options) as session:
        ended = await session.client.grants.revoke(grant)
        if wait:
            ended = await _wait_until_applied(session, ended, timeout)
    _show(ended)
