"""Pure: the people of a machine, as the script that makes them reads it."""

import base64
import re
from importlib.resources import files

from gpuaas_agent.errors import PeopleRefusedError, PermanentError
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
        if user.login in spec.temporary:
            lines.append(f"temporary {user.login}")
        options = f'restrict,pty,port-forwarding,from="{",".join(sources)}"'
        lines += [f"key {user.login} {options} {key}" for key in user.public_keys]
    for account in spec.accounts:
        _check_name(account.login, account.uid)
        lines += [f"{'leaving' if account.leaving else 'account'} {account.login} {account.uid}"]
    for group in spec.groups:
        _check_name(group.name, group.gid)
        for login in group.logins:
            _check_name(login, FIRST_UID)
        lines.append(f"group {group.name} {group.gid} {','.join(group.logins)}")
    return "".join(f"{line}\n" for line in lines)


def read_refusals(said: str) -> dict[str, str]:
    """Read whom the script could not make, and why: lines of `refused LOGIN: words`."""
    found = (line.removeprefix("refused ").partition(": ") for line in said.splitlines() if line.startswith("refused "))
    return {login: words for login, _, words in found}


def refusal_of(said: str, otherwise: str) -> PermanentError:
    """Make the error of a script that failed, with all whom it refused."""
    refused = read_refusals(said)
    words = "; ".join(f"{login}: {reason}" for login, reason in refused.items()) or said or otherwise
    return PeopleRefusedError(words, refused) if refused else PermanentError(words)


def _check_name(name: str, number: int) -> None:
    if not _LOGIN.fullmatch(name):
        raise PermanentError(f"{name!r} is not a login name for people")
    if not FIRST_UID <= number <= LAST_UID:
        raise PermanentError(f"{number} is not a user id for people")


def _check(user: MachineUser) -> None:
    _check_name(user.login, user.uid)
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
