"""Names on machines: those of people, made from their e-mail address and safe in a shell, and those in certificates."""

import re

MOST_CHARACTERS = 24
PREFIX = "u-"
"""Of the names of people: no package makes users or groups that begin so, and no app may. Whatever is installed on a
machine later finds its name free."""

GROUP_PREFIX = "p-"
"""Of the groups of projects, likewise."""


def login_for(email: str, uid: int, *, taken: bool) -> str:
    """The part before the @, in the namespace of people; with the person's number where that is taken."""
    local = email.partition("@")[0].lower()
    name = re.sub(r"[^a-z0-9]+", "-", local).strip("-")[:MOST_CHARACTERS].strip("-")
    if not name:
        return f"{PREFIX}{uid}"
    return f"{PREFIX}{name}-{uid}" if taken else f"{PREFIX}{name}"


def group_for(project: str, gid: int, *, taken: bool) -> str:
    """Name the group of a project; with its number where the name is taken."""
    name = re.sub(r"[^a-z0-9]+", "-", project.lower()).strip("-")[:MOST_CHARACTERS].strip("-")
    if not name:
        return f"{GROUP_PREFIX}{gid}"
    return f"{GROUP_PREFIX}{name}-{gid}" if taken else f"{GROUP_PREFIX}{name}"


def is_of_people(login: str) -> bool:
    """Whether no package can want the name. Names from before there was a namespace may be those of a daemon."""
    return login.startswith(PREFIX)


def lease_principal(leased_id: str, fencing_token: int, *, observer: bool = False) -> str:
    """Name the principal of one holder of a lease on an operation or an instance. The ids of its certificates begin
    with it, by which a machine knows whose session is whose. Whoever looks under the lease of an operation has another
    one beside it: neither certificate is good for the other's user."""
    return f"{leased_id}/{fencing_token}" + ("_observer" if observer else "")


def role_principal(person_id: str) -> str:
    """Name the principal of somebody who administers machines and logs in as their own user. As for a lease, the ids of
    its certificates begin with it."""
    return f"{person_id}/role"
