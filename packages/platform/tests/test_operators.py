"""Who may work on an instance that has an operator, and what is said of an operator that cannot."""

from datetime import UTC, datetime

import pytest

from gpuaas_contract.identity import PrincipalKind, Role
from gpuaas_contract.instances import InstanceUpdate, OperatorState
from gpuaas_contract.problems import Code
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.records import OperatorRecord
from gpuaas_platform.identity.rules.operators import operator_finding, operator_state
from gpuaas_platform.identity.rules.policy import CONTROLLER, Caller, Permission, RoleGrant, Scope

ID = "sva_" + "0" * 26
HERE = Scope(tenant_id="ten_1", project_id="prj_1", app_slug="echo")


def account(id: str = ID, *roles: str, app: str = "echo") -> Caller:
    grants = tuple(RoleGrant(role, project_id="prj_1") for role in (CONTROLLER, *roles))
    return Caller(PrincipalKind.SERVICE_ACCOUNT, id, id, grants, app_slug=app)


def code(caller: Caller, permission: Permission, operator_id: str | None) -> Code | None:
    try:
        caller.require(permission, HERE, "operation", "op_1", operator_id=operator_id)
    except Refusal as refusal:
        return refusal.code
    return None


@pytest.mark.parametrize("permission", [Permission.OPERATION_WORK, Permission.OPERATION_START])
def test_only_the_operator_does_the_work_of_a_controller(permission: Permission) -> None:
    assert code(account(), permission, None) is None
    assert code(account(), permission, ID) is None
    assert code(account("sva_other"), permission, ID) == Code.NOT_OPERATOR
    assert code(account("sva_other"), Permission.INSTANCE_READ, ID) is None, "it may look"
    assert code(account("sva_other", app="another"), permission, ID) == Code.NOT_FOUND, "as before"


def test_an_administrator_asks_for_operations_whoever_the_operator_is() -> None:
    automation = account("sva_other", Role.PROJECT_ADMIN)
    assert code(automation, Permission.OPERATION_START, ID) is None
    assert code(automation, Permission.OPERATION_WORK, ID) == Code.NOT_OPERATOR


def operator(**changes: object) -> OperatorRecord:
    fields = {
        "name": "mine",
        "app_slug": "echo",
        "disabled": False,
        "usable": True,
        "seen_at": datetime(2026, 1, 1, tzinfo=UTC),
        "connected": True,
    }
    return OperatorRecord(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "said", "words", "state"),
    [
        (operator(), None, "", OperatorState.CONNECTED),
        (None, "operator_unusable", "there is no service account", OperatorState.DELETED),
        (operator(usable=False), "operator_unusable", "there is no service account", OperatorState.CONNECTED),
        (operator(app_slug="other"), "operator_unusable", "bound to other", OperatorState.CONNECTED),
        (operator(app_slug=None), "operator_unusable", "bound to no app", OperatorState.CONNECTED),
        (operator(disabled=True), "operator_unusable", "is disabled", OperatorState.DISABLED),
        (operator(connected=False), "operator_not_connected", "was last seen at 2026-01-01", OperatorState.AWAY),
        (operator(connected=False, seen_at=None), "operator_not_connected", "never been connected", OperatorState.AWAY),
    ],
)
def test_what_is_said_of_it(found: OperatorRecord | None, said: str | None, words: str, state: OperatorState) -> None:
    finding = operator_finding(ID, found, "echo")
    assert (finding and finding.code) == said
    assert words in (finding.message if finding else "")
    assert operator_state(found) == state


def test_null_is_a_wish_and_absence_is_none() -> None:
    assert InstanceUpdate(operator_account_id=None).model_fields_set == {"operator_account_id"}
    wrong: list[dict[str, object]] = [{}, {"mode": None}, {"operator_account_id": ""}, {"operator_account_id": "sva_1"}]
    for body in wrong:
        with pytest.raises(ValueError, match="validation error"):
            InstanceUpdate.model_validate(body)
