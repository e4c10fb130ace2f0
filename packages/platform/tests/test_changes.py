"""Who sees which change."""

import pytest

from gpuaas_contract.identity import PrincipalKind, Role
from gpuaas_contract.nouns import Noun
from gpuaas_platform.feed import rules as changes
from gpuaas_platform.feed.rules import OPEN_NOUNS, READ_PERMISSION, Sight, may_see
from gpuaas_platform.identity.rules.policy import CONTROLLER, POLICY, Caller, RoleGrant, Scope

PROJECT = Scope("ten_1", "prj_1")


def caller(*grants: RoleGrant, app_slug: str | None = None) -> Caller:
    tenants = frozenset({"ten_1"}) if grants else frozenset[str]()
    return Caller(PrincipalKind.USER, "usr_1", "ada", grants, app_slug, tenants)


ADMIN = caller(RoleGrant(Role.PLATFORM_ADMIN))
VIEWER = caller(RoleGrant(Role.PROJECT_VIEWER, None, "prj_1"))
NOBODY = caller()


@pytest.mark.parametrize("noun", Noun)
def test_a_change_is_seen_by_those_who_may_read_the_thing(noun: Noun) -> None:
    permission = READ_PERMISSION.get(noun)
    for who in (ADMIN, VIEWER, NOBODY):
        assert may_see(who, noun, PROJECT) == (who is ADMIN if permission is None else who.may(permission, PROJECT))
    assert may_see(ADMIN, noun, PROJECT)
    assert not may_see(NOBODY, noun, PROJECT)


def test_every_noun_of_the_feed_says_who_may_read_it() -> None:
    assert set(READ_PERMISSION) == set(Noun)


def test_a_noun_of_the_future_is_for_those_who_see_everything() -> None:
    assert (may_see(ADMIN, "surprise", PROJECT), may_see(VIEWER, "surprise", PROJECT)) == (True, False)


def test_a_viewer_sees_its_project_and_no_other() -> None:
    seen = {noun for noun in Noun if may_see(VIEWER, noun, PROJECT)}
    assert {Noun.INSTANCE, Noun.OPERATION, Noun.ALLOCATION, Noun.VOLUME} <= seen
    assert not seen & {Noun.USER, Noun.NODE, Noun.JOIN_TOKEN, Noun.SSH_KEY, Noun.SERVICE_ACCOUNT, Noun.MEMBERSHIP}
    assert not [noun for noun in Noun if may_see(VIEWER, noun, Scope("ten_2", "prj_2"))]


def test_what_belongs_to_no_tenant_can_be_seen_by_others_than_admins() -> None:
    assert OPEN_NOUNS == ["app_version", "artifact", "trusted_key"]
    for noun in OPEN_NOUNS:
        assert POLICY[READ_PERMISSION[noun]] & {Role.APP_PUBLISHER, Role.PROJECT_VIEWER}


def test_what_is_remembered_is_what_is_so() -> None:
    controller = caller(RoleGrant(CONTROLLER, None, "prj_1"), app_slug="demo")
    for who in (ADMIN, VIEWER, NOBODY, controller):
        sight = Sight(who)
        asked = [
            (noun, tenant, project, app)
            for noun in (Noun.INSTANCE, Noun.NODE)
            for tenant, project in (("ten_1", "prj_1"), ("ten_2", "prj_2"), (None, None))
            for app in ("demo", "else", None)
        ]
        for noun, tenant, project, app in asked * 2:
            assert sight.sees(noun, tenant, project, app) == may_see(who, noun, Scope(tenant, project, app))


def test_each_place_is_judged_once_until_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str | None] = []

    def judge(caller: Caller, noun: str, scope: Scope) -> bool:
        judged.append(scope.project_id)
        return True

    monkeypatch.setattr(changes, "may_see", judge)
    monkeypatch.setattr(Sight, "MOST", 3)
    sight = Sight(VIEWER)
    for project in ("prj_1", "prj_1", "prj_2", "prj_3", "prj_1", "prj_4", "prj_1"):
        sight.sees(Noun.INSTANCE, "ten_1", project, None)
    assert judged == ["prj_1", "prj_2", "prj_3", "prj_4", "prj_1"], "with the fourth, all before it are forgotten"
