"""The people of an instance: everybody who may use it, and the entry that each has on its machines."""

from enum import StrEnum

from pydantic import AwareDatetime

from gpuaas_contract.base import Page, Resource
from gpuaas_contract.grants import GrantStatus

LEAVING_SECONDS = 60
"""How long the processes of somebody who lost the right are left to the app, which ends its work for them in its own
order. Log-in ends at once; after this time the machines end all that is left of them."""


class PersonRole(StrEnum):
    """The right by which somebody is one of the people of an instance; the strongest of several."""

    PROJECT_ADMIN = "project_admin"
    PROJECT_MEMBER = "project_member"
    GRANT = "grant"
    """A grant of their own on a machine of an entrance, without a role in the project."""


class PersonEntry(Resource):
    """A person's user on one machine of the instance."""

    allocation_id: str
    allocation_name: str
    log_in: bool
    """Whether the person may log in there; otherwise the machine only knows their name and number."""
    status: GrantStatus
    reason: str


class Person(Resource):
    user_id: str
    email: str
    login: str
    """The Linux name, the same on every machine; only people have names that begin with `u-`."""
    uid: int
    """The number of the user and of its own group, the same on every machine."""
    project_id: str
    group: str
    """The Linux group of the project, which all people of the instance are in."""
    gid: int
    role: PersonRole
    since: AwareDatetime
    left_at: AwareDatetime | None
    """When the right ended. Somebody who left is listed until the machines have ended what they had running."""
    may_log_in: bool
    """Whether a machine of an entrance has the person's user now, and lets them in."""
    entries: list[PersonEntry]
    """On machines that the platform makes users on. An external machine has none."""


class PersonPage(Page):
    items: list[Person]
