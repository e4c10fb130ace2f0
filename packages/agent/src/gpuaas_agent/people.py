"""Pure: the people of a machine, as the script that makes them reads it."""

import base64
import re
from importlib.resources import files

from gpuaas_agent.errors import PermanentError
from gpuaas_contract.agent_link import MachineUser, SetUsers
from gpuaas_contract.grants import FIRST_UID, LAST_UID

SCRIPT = files("gpuaas_agent").joinpath("users.sh").read_text()
_LOGIN = re.compile(r"[a-z][a-z0-9-]{0,30}[a-z0-9]")
_PRINCIPAL = re.compile(r"grt_[0-9a-z]{26}")
_KEY = re.compile(r"(ssh-(ed25519|rsa)|ecdsa-sha2-nistp\d{3}|sk-[a-z0-9-]+@openssh\.com) ([A-Za-z0-9+/=]{40,3000})")


def wanted_people(spec: SetUsers, sources: list[str]) -> str:
    """List the people as the script reads them; refuse what is not fit to become a path, a file line or a shell word.

    `sources` are the addresses that the agent itself comes from: a person's own key works from there only, so that
    it is of no use past the platform."""
    lines = []
    for user in spec.users:
        _check(user)
        lines.append(f"user {user.login} {user.uid} {int(user.sudo)} {user.principal} {int(user.remote_forwarding)}")
        options = f'restrict,pty,port-forwarding,from="{",".join(sources)}"'
        lines += [f"key {user.login} {options} {key}" for key in user.public_keys]
    return "".join(f"{line}\n" for line in lines)


def _check(user: MachineUser) -> None:
    if not _LOGIN.fullmatch(user.login):
        raise PermanentError(f"{user.login!r} is not a login name for people")
    if not FIRST_UID <= user.uid <= LAST_UID:
        raise PermanentError(f"{user.uid} is not a user id for people")
    if not _PRINCIPAL.fullmatch(user.principal):
        raise PermanentError(f"{user.principal!r} is not the principal of a grant")
    for key in user.public_keys:
        found = _KEY.fullmatch(key)
        if found is None:
            raise PermanentError(f"a key of {user.login} is not a public key")
        try:
            base64.b64decode(found[3], validate=True)
        except ValueError:
            raise PermanentError(f"a key of {user.login} is not a public key") from None
