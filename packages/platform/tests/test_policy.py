"""Who may do what, and where: the table of roles, and how far a role reaches."""

import itertools

import pytest

from gpuaas_contract.identity import PrincipalKind, Role
from gpuaas_contract.problems import Code
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import CONTROLLER, POLICY, Caller, Permission, RoleGrant, Scope

P = Permission
WITHOUT_ROLE = {P.ANONYMOUS, P.AUTHENTICATED, P.PERSON, P.OWN_LOGIN, P.AGENT}
PLATFORM_ONLY = {P.TENANT_CREATE, P.TENANT_DELETE, P.USER_MANAGE, P.NODE_MANAGE, P.NODE_READ, P.METRICS_READ}
FROM_TENANT = {P.TENANT_UPDATE, P.PROJECT_CREATE, P.PROJECT_DELETE, P.QUOTA_SET}
PUBLISHING = {P.APP_PUBLISH, P.ENTITLEMENT_MANAGE}
READS_FOR_ADMINS = {P.SERVICE_ACCOUNT_READ, P.AUDIT_READ}
BY_RANK = [Role.PROJECT_VIEWER, Role.PROJECT_MEMBER, Role.PROJECT_ADMIN, Role.TENANT_ADMIN, Role.PLATFORM_ADMIN]


def granted(role: str) -> set[Permission]:
    return {permission for permission, roles in POLICY.items() if role in roles}


READS = {p for p in POLICY if p.value.endswith(".read")} - READS_FOR_ADMINS - PLATFORM_ONLY - {P.PEOPLE_READ}


def test_every_permission_is_in_the_table_or_needs_no_role() -> None:
    assert set(POLICY) == set(Permission) - WITHOUT_ROLE


def test_a_higher_role_may_all_that_a_lower_one_may() -> None:
    for lower, higher in itertools.pairwise(BY_RANK):
        assert granted(lower) <= granted(higher)


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        (Role.PROJECT_VIEWER, READS),
        (Role.PROJECT_MEMBER, READS | {P.PEOPLE_READ, P.TUNNEL_OPEN}),
        (Role.PROJECT_ADMIN, set(POLICY) - PLATFORM_ONLY - FROM_TENANT - PUBLISHING - {P.OPERATION_WORK}),
        (Role.TENANT_ADMIN, set(POLICY) - PLATFORM_ONLY - PUBLISHING - {P.OPERATION_WORK}),
        (Role.PLATFORM_ADMIN, set(POLICY) - {P.OPERATION_WORK}),
        (Role.APP_PUBLISHER, PUBLISHING | {P.ARTIFACT_READ, P.ARTIFACT_MANAGE}),
        (CONTROLLER, READS - {P.SECRET_READ} | {P.PEOPLE_READ, P.OPERATION_START, P.OPERATION_WORK}),
    ],
)
def test_what_a_role_may(role: str, expected: set[Permission]) -> None:
    assert granted(role) == expected


PLATFORM = Scope()
TENANT, OTHER_TENANT = Scope("ten_1"), Scope("ten_2")
PROJECT, SIBLING, STRANGE = Scope("ten_1", "prj_1"), Scope("ten_1", "prj_2"), Scope("ten_2", "prj_3")
SCOPES = {
    "platform": PLATFORM,
    "tenant": TENANT,
    "other tenant": OTHER_TENANT,
    "project": PROJECT,
    "sibling": SIBLING,
    "strange": STRANGE,
}


def caller(role: str, tenant: str | None = None, project: str | None = None, app: str | None = None) -> Caller:
    grant = RoleGrant(role, tenant, project, app if role == Role.APP_PUBLISHER else None)
    seen = frozenset({"ten_1"}) if tenant or project else frozenset[str]()
    return Caller(PrincipalKind.USER, "usr_1", "ada", (grant,), app if role == CONTROLLER else None, seen)


@pytest.mark.parametrize(
    ("who", "manages", "sees"),
    [
        (caller(Role.PLATFORM_ADMIN), set(SCOPES), set(SCOPES)),
        (caller(Role.TENANT_ADMIN, "ten_1"), {"tenant", "project", "sibling"}, {"tenant", "project", "sibling"}),
        (caller(Role.PROJECT_ADMIN, None, "prj_1"), {"project"}, {"tenant", "project"}),
        (caller(Role.PROJECT_ADMIN, "ten_1"), {"project", "sibling"}, {"tenant", "project", "sibling"}),
        (caller(Role.PROJECT_VIEWER, None, "prj_1"), set(), {"tenant", "project"}),
        (caller(Role.APP_PUBLISHER, app="demo"), set(), set()),
        (Caller(PrincipalKind.USER, "usr_2", "nobody"), set(), set()),
    ],
    ids=["platform admin", "tenant admin", "project admin", "admin of all projects", "viewer", "publisher", "nobody"],
)
def test_how_far_a_role_reaches(who: Caller, manages: set[str], sees: set[str]) -> None:
    assert {name for name, scope in SCOPES.items() if who.may(P.INSTANCE_DEPLOY, scope)} == manages
    assert {name for name, scope in SCOPES.items() if who.sees(scope)} == sees
    assert {name for name, scope in SCOPES.items() if who.may(P.TENANT_READ, scope)} == sees


@pytest.mark.parametrize("role", [Role.PROJECT_ADMIN, Role.PROJECT_MEMBER, Role.PROJECT_VIEWER])
def test_a_role_in_all_projects_of_a_tenant_is_none_above_them(role: Role) -> None:
    grant = RoleGrant(role, "ten_1")
    assert [grant.covers(scope) for scope in (PROJECT, SIBLING, TENANT, STRANGE)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("who", "scope", "permission", "answer"),
    [
        (caller(Role.PROJECT_ADMIN, None, "prj_1"), PROJECT, P.INSTANCE_DEPLOY, None),
        (caller(Role.PROJECT_VIEWER, None, "prj_1"), PROJECT, P.INSTANCE_DEPLOY, Code.FORBIDDEN),
        (caller(Role.PROJECT_VIEWER, None, "prj_1"), SIBLING, P.INSTANCE_READ, Code.NOT_FOUND),
        (caller(Role.TENANT_ADMIN, "ten_1"), OTHER_TENANT, P.TENANT_UPDATE, Code.NOT_FOUND),
        (caller(Role.PROJECT_ADMIN, None, "prj_1"), TENANT, P.TENANT_UPDATE, Code.FORBIDDEN),
        (caller(Role.TENANT_ADMIN, "ten_1"), PLATFORM, P.NODE_READ, Code.FORBIDDEN),
        (Caller(PrincipalKind.USER, "usr_2", "nobody"), PLATFORM, P.NODE_READ, Code.FORBIDDEN),
    ],
)
def test_what_may_not_be_known_is_not_found(
    who: Caller, scope: Scope, permission: Permission, answer: Code | None
) -> None:
    if answer is None:
        who.require(permission, scope, "project", "prj_1")
        return
    with pytest.raises(Refusal) as refused:
        who.require(permission, scope, "project", "prj_1")
    assert (refused.value.code, refused.value.denied) == (answer, True)


def test_a_refusal_is_a_sentence() -> None:
    viewer = caller(Role.PROJECT_VIEWER, None, "prj_1")
    for permission, said in (
        (P.TUNNEL_OPEN, "open tunnels"),
        (P.PEOPLE_READ, "read the people of instances"),
        (P.SERVICE_ACCOUNT_CREATE, "create service accounts"),
    ):
        with pytest.raises(Refusal, match=f"may not {said} here"):
            viewer.require(permission, PROJECT, "project", "prj_1")


def test_a_controller_knows_the_instances_of_its_own_app_only() -> None:
    controller = caller(CONTROLLER, None, "prj_1", "demo")
    own, other = Scope("ten_1", "prj_1", "demo"), Scope("ten_1", "prj_1", "else")
    for permission in (P.INSTANCE_READ, P.OPERATION_WORK, P.OPERATION_START):
        assert [controller.may(permission, scope) for scope in (own, other)] == [True, False]
    assert [controller.sees(scope) for scope in (own, other, PROJECT)] == [True, False, True]
    assert controller.may(P.INSTANCE_READ, PROJECT), "what is of no app belongs to the project"
    assert controller.only_app == "demo"
    also_viewer = Caller(
        PrincipalKind.SERVICE_ACCOUNT,
        "sva_1",
        "both",
        (*controller.grants, RoleGrant(Role.PROJECT_VIEWER, None, "prj_1")),
        "demo",
    )
    assert also_viewer.only_app is None
    assert also_viewer.may(P.INSTANCE_READ, other)
    assert not also_viewer.may(P.OPERATION_WORK, other)


def test_a_publisher_has_its_own_app_wherever_that_is() -> None:
    publisher = caller(Role.APP_PUBLISHER, app="demo")
    assert publisher.may(P.APP_PUBLISH, Scope(app_slug="demo"))
    assert not publisher.may(P.APP_PUBLISH, Scope(app_slug="else"))
    assert not publisher.may(P.APP_PUBLISH, PLATFORM)
    assert not publisher.sees(Scope("ten_1", "prj_1", "demo")), "an instance of it is none of its business"
    assert publisher.published_apps == ["demo"]
    assert not RoleGrant(Role.APP_PUBLISHER).covers(PLATFORM), "without an app it is for none"


def test_where_a_caller_has_a_permission() -> None:
    grants = (
        RoleGrant(Role.TENANT_ADMIN, "ten_1"),
        RoleGrant(Role.PROJECT_ADMIN, None, "prj_1"),
        RoleGrant(Role.PROJECT_VIEWER, None, "prj_2"),
        RoleGrant(Role.PROJECT_VIEWER, "ten_2"),
    )
    who = Caller(PrincipalKind.USER, "usr_1", "ada", grants)
    assert (who.projects_with(P.INSTANCE_DEPLOY), who.tenants_with(P.INSTANCE_DEPLOY)) == (["prj_1"], ["ten_1"])
    assert who.projects_with(P.INSTANCE_READ) == who.project_ids == ["prj_1", "prj_2"]
    assert (who.whole_tenant_ids, who.published_apps, who.only_app) == (["ten_1", "ten_2"], [], None)
    assert Caller(PrincipalKind.USER, "usr_2", "nobody").only_app is None
    assert not who.is_platform_admin
    assert caller(Role.PLATFORM_ADMIN).is_platform_admin
