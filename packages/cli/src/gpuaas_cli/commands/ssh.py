"""Run OpenSSH with a short-lived certificate and a verified host."""

import os
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli.errors import CliError
from gpuaas_cli.machine_access import find_machine, make_key, proxy_command, ssh_settings, write_certificate
from gpuaas_cli.options import DEFAULTS, Options
from gpuaas_cli.session import open_session

if TYPE_CHECKING:
    from gpuaas_contract.access import AccessGrant


async def ssh(
    target: Annotated[str, Parameter(help="An allocation or an instance, by name or id.")],
    *command: Annotated[str, Parameter(allow_leading_hyphen=True, help="Command to run; default: a shell.")],
    forward: Annotated[
        tuple[str, ...],
        Parameter(
            name=["-L", "--forward"],
            negative="",
            help="Forward a port as ssh does: [ADDRESS:]PORT:HOST:PORT. Repeatable.",
        ),
    ] = (),
    no_command: Annotated[
        bool, Parameter(name=["-N", "--no-command"], negative="", help="Run no command; only forward ports.")
    ] = False,
    administrator: Annotated[
        bool,
        Parameter(negative="", help="Log in as the machine's own user, by your role, even if you have a grant."),
    ] = False,
    direct: Annotated[
        bool, Parameter(negative="", help="Connect straight to the machine's address; needs a route to it.")
    ] = False,
    options: Options = DEFAULTS,
) -> int:
    """Log in to a machine, or run a command on it.

    With a grant (gpuaas grant list --own) you log in as your own user; without one, project administrators log in as
    the machine's own user. An instance stands for the machine of its primary component. The exit code is that of the
    command.

    ```
    gpuaas ssh one
    gpuaas ssh one -- uptime
    gpuaas ssh one -L 8080:localhost:80 -N
    gpuaas ssh first --direct
    ```
    """
    async with open_session(options) as session:
        allocation_id = await find_machine(session, target)
        with tempfile.TemporaryDirectory(prefix="gpuaas-ssh-") as name:
            directory = Path(name)
            public_key = make_key(directory)
            access = await session.client.allocations.access(allocation_id, public_key, administrator=administrator)
            flags = [part for forwarded in forward for part in ("-L", forwarded)] + ["-N"] * no_command
            arguments = ssh_arguments(directory, access, allocation_id, flags, direct=direct)
            write_token(directory, await session.client.token())
            # The proxy is this program again, started by ssh; the token is in a file, for others can read environments.
            environment = {**os.environ, "GPUAAS_API_URL": session.target.api_url}
            if session.target.ca_file is not None:
                environment["GPUAAS_CA_FILE"] = session.target.ca_file
            environment.pop("GPUAAS_TOKEN", None)
            return _run([*arguments, *command], environment)


def ssh_arguments(
    directory: Path, access: "AccessGrant", allocation_id: str, flags: list[str], *, direct: bool
) -> list[str]:
    write_certificate(directory, access, allocation_id)
    proxy = None if direct else proxy_command(access.id, allocation_id, str(directory / TOKEN_FILE))
    settings = ssh_settings(directory, access, allocation_id, proxy=proxy)
    settings = {**settings, "IdentitiesOnly": "yes", "LogLevel": "ERROR"}
    words = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
    # The user's own configuration could weaken the verification of the host, so ssh must not read it.
    return ["ssh", "-F", "/dev/null", *words, *flags, "--", allocation_id]


TOKEN_FILE = "token"  # noqa: S105 - the name of a file


def write_token(directory: Path, token: str) -> None:
    file = directory / TOKEN_FILE
    file.touch(mode=0o600)
    file.write_text(token)


def _run(arguments: list[str], environment: dict[str, str]) -> int:
    """Run ssh. Ctrl-C goes to the remote command; SIGTERM and SIGHUP end ssh first, so that the key is removed."""
    try:
        process = subprocess.Popen(arguments, env=environment)
    except FileNotFoundError:
        raise CliError("ssh is not installed", hint="apt-get install openssh-client") from None
    previous = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    for number in (signal.SIGTERM, signal.SIGHUP):
        previous[number] = signal.signal(number, lambda *_: process.terminate())
    try:
        return process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
