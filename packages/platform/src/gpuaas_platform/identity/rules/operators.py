"""The operator of an instance: the one service account that works on it. Whether it can, and why not."""

from gpuaas_contract.findings import Finding, Severity
from gpuaas_contract.instances import OperatorState
from gpuaas_platform.identity.records import OperatorRecord

NOT_CONNECTED = "operator_not_connected"
UNUSABLE = "operator_unusable"
_INSTEAD = "name another service account, or none"


def operator_state(operator: OperatorRecord | None) -> OperatorState:
    if operator is None:
        return OperatorState.DELETED
    if operator.disabled:
        return OperatorState.DISABLED
    return OperatorState.CONNECTED if operator.connected else OperatorState.AWAY


def operator_finding(account_id: str, operator: OperatorRecord | None, app_slug: str) -> Finding | None:
    """Say why nobody would work: an error where the account cannot be the operator, a warning where it is away. An
    account of another project or tenant looks like one that does not exist."""
    if operator is None or not operator.usable:
        return _unusable(f"there is no service account {account_id} in this project or its tenant", _INSTEAD)
    if operator.app_slug != app_slug:
        bound = f"bound to {operator.app_slug}" if operator.app_slug else "bound to no app"
        return _unusable(f"the service account {operator.name} is {bound}, not to {app_slug}", _INSTEAD)
    if operator.disabled:
        message = f"the service account {operator.name}, the operator, is disabled: nobody works on the instance"
        return _unusable(message, f"enable it, or {_INSTEAD}")
    if operator.connected:
        return None
    seen = "has never been connected" if operator.seen_at is None else f"was last seen at {operator.seen_at:%FT%TZ}"
    message = f"no controller of the operator {operator.name} is connected: it {seen}"
    action = f"start the app's controller with this account, or {_INSTEAD}; what is asked for now waits for it"
    return Finding(
        severity=Severity.WARNING, code=NOT_CONNECTED, message=message, pointer="/operator_account_id", action=action
    )


def _unusable(message: str, action: str) -> Finding:
    return Finding(
        severity=Severity.ERROR, code=UNUSABLE, message=message, pointer="/operator_account_id", action=action
    )
