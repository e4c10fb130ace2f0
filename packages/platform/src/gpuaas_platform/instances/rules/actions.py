"""Decide which actions on an instance, its members and its operations are allowed now, and why the rest are not.

The lists of allowed actions and the refusals of requests both come from here, so that the lists are true."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpuaas_contract.instances import DesiredState, MemberStatus
from gpuaas_contract.manifest import Manifest, Mode
from gpuaas_contract.offers import Offer
from gpuaas_contract.operations import Kind, OperationState
from gpuaas_contract.problems import AllowedAction, Code
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.instances.records import InstanceSummary, InstanceView, MemberView
from gpuaas_platform.instances.rules.placements import mode_problem
from gpuaas_platform.operations.records import (
    LastOperation,
    OpenOperation,
    OperationRecord,
    OperationTarget,
    OperationView,
)

_M = MemberStatus
_WORKING = frozenset({_M.CONFIGURING, _M.READY, _M.DRAINING, _M.DRAINED, _M.STOPPED, _M.FAILED})
_FROM: dict[str, frozenset[MemberStatus]] = {
    Kind.DRAIN: frozenset({_M.READY, _M.DRAINING, _M.FAILED}),
    Kind.RESUME: frozenset({_M.DRAINING, _M.DRAINED, _M.STOPPED}),
    Kind.REMOVE: frozenset(set(_M) - {_M.REMOVED}),
    Kind.REPLACE: frozenset(set(_M) - {_M.REMOVED, _M.REMOVING}),
    Kind.RECOVER: _WORKING,
}
"""The statuses from which a member operation leads somewhere; others that an app declares need a member that works."""

_WANTED: dict[str, DesiredState] = {Kind.START: DesiredState.RUNNING, Kind.STOP: DesiredState.STOPPED}

UNASKED = {
    Kind.DEPLOY: "it is made with the instance; where it failed, retry it",
    Kind.ADD: "it is made with its member; where it failed, retry it or remove the member",
    Kind.RESIZE: "the platform asks it by itself: resize the machine",
    Kind.PREFLIGHT: "the platform asks it by itself: ask for a preflight",
}
"""Kinds that no person requests as such."""
NEVER_CANCELLED = {Kind.DECOMMISSION, Kind.RESIZE}
RETRIED_FROM = {OperationState.FAILED, OperationState.CANCELLED}


@dataclass(frozen=True, slots=True)
class Denial:
    code: Code
    detail: str
    operation: OpenOperation | None = None
    """The one that is in the way."""

    def refusal(self) -> Refusal:
        if self.operation is None:
            return Refusal(self.code, self.detail)
        id = self.operation.id
        watch = Offer.GET_OPERATION.action("watch", "Watch the running operation", operation_id=id)
        return Refusal(self.code, self.detail, allowed_actions=[watch], context={"operation_id": id})


@dataclass(frozen=True)
class InstanceFacts:
    """Everything about an instance that the rules depend on."""

    instance_id: str
    manifest: Manifest
    mode: Mode | None
    desired_state: str
    ended: bool
    deployed: bool
    """Its deploy has succeeded once."""
    last_operation: LastOperation | None
    """The newest on the whole instance that was not cancelled before anybody claimed it."""
    open: Sequence[OpenOperation]
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Members by component: those that live, and how many of them no open operation is about to remove. One that is
    about to take over for another counts as that other."""

    @classmethod
    def of(cls, instance: InstanceView | InstanceSummary, manifest: Manifest) -> "InstanceFacts":
        return cls(
            instance_id=instance.id,
            manifest=manifest,
            mode=manifest.mode(instance.mode),
            desired_state=instance.desired_state,
            ended=instance.ended_at is not None,
            deployed=instance.deployed,
            last_operation=instance.last_operation,
            open=instance.open_operations,
            counts={key: (found[0], found[1]) for key, found in (instance.counts or {}).items()},
        )

    def present(self, component_key: str) -> int:
        return self.counts.get(component_key, (0, 0))[0]

    def staying(self, component_key: str) -> int:
        return self.counts.get(component_key, (0, 0))[1]

    def limits(self, component_key: str) -> tuple[int, int]:
        component = self.manifest.component(component_key)
        assert component is not None
        low, high = component.min, component.max
        for limit in self.mode.limits if self.mode else ():
            if limit.component == component_key:
                low, high = max(low, limit.min), min(high, limit.max)
        return low, high


def excludes(one: OperationTarget, other: OperationTarget) -> bool:
    """Say whether two operations must not be open at once: on the same member, or one on the whole instance."""
    targets, others = one.member_ids, other.member_ids
    return not targets or not others or bool(targets & others)


def busy_denial(
    facts: InstanceFacts, member_id: str | None, replacement_id: str | None = None, *, ignoring: Iterable[str] = ()
) -> Denial | None:
    """Name the first open operation that excludes one on this member, or on the whole instance."""
    wanted = OperationTarget(member_id, replacement_id)
    ignored = set(ignoring)
    found = next((op for op in facts.open if op.id not in ignored and excludes(op, wanted)), None)
    return None if found is None else _running(found)


def _running(operation: OpenOperation) -> Denial:
    waits = "is queued" if operation.queued else "is under way"
    detail = f"operation {operation.id} ({operation.kind}) {waits}; wait for it, or ask to be queued"
    return Denial(Code.OPERATION_RUNNING, detail, operation)


def _not_in_mode(facts: InstanceFacts, kind: str) -> Denial | None:
    if facts.mode is None or not facts.mode.actions or kind in facts.mode.actions:
        return None
    allowed = ", ".join(facts.mode.actions)
    return Denial(Code.ACTION_NOT_ALLOWED, f"{kind} is not for the mode {facts.mode.key}, which has: {allowed}")


def _not_running(facts: InstanceFacts) -> Denial | None:
    if facts.desired_state == DesiredState.DECOMMISSIONED:
        return Denial(Code.INVALID_STATE, "the instance is being decommissioned")
    if facts.desired_state == DesiredState.STOPPED:
        return Denial(Code.ACTION_NOT_ALLOWED, "the instance is stopped: start it first")
    return None


def _undeclared(facts: InstanceFacts, kind: str, what: str) -> Denial:
    app = f"{facts.manifest.slug} {facts.manifest.version}"
    if kind in facts.manifest.kinds:
        return Denial(Code.INVALID_REQUEST, f"{kind!r} of {app} is not about {what}")
    return Denial(Code.INVALID_REQUEST, f"{app} has no operation {kind!r}")


def instance_denial(facts: InstanceFacts, kind: str, *, queued: bool = False) -> Denial | None:
    """Why an operation on the whole instance cannot be asked for now. One that may wait is judged on its turn."""
    if facts.manifest.instance_operation(kind) is None:
        return _undeclared(facts, kind, "the whole instance: name a member")
    if kind in {Kind.DEPLOY, Kind.PREFLIGHT}:
        return Denial(Code.ACTION_NOT_ALLOWED, UNASKED[Kind(kind)])
    if facts.ended:
        return Denial(Code.INVALID_STATE, "the instance is decommissioned already")
    if kind == Kind.DECOMMISSION:
        going = next((operation for operation in facts.open if operation.kind == kind), None)
        return None if going is None else _running(going)
    if (denial := _not_in_mode(facts, kind)) is not None:
        return denial
    if facts.desired_state == DesiredState.DECOMMISSIONED:
        return busy_denial(facts, None) or _not_running(facts)
    if queued:
        return None
    return busy_denial(facts, None) or _not_deployed(facts) or _wrong_state(facts, kind)


def _not_deployed(facts: InstanceFacts) -> Denial | None:
    if facts.deployed:
        return None
    return Denial(Code.ACTION_NOT_ALLOWED, "its deploy has not succeeded: retry that, or decommission the instance")


def _wrong_state(facts: InstanceFacts, kind: str) -> Denial | None:
    last = facts.last_operation
    unfinished = last is not None and last.kind == kind and last.state != OperationState.SUCCEEDED
    wanted = _WANTED.get(kind)
    if wanted is None:
        return _not_running(facts)
    if facts.desired_state == wanted and not unfinished:
        return Denial(Code.ACTION_NOT_ALLOWED, f"the instance is meant to be {wanted.value} already")
    return None


def member_denial(facts: InstanceFacts, member: MemberView, kind: str, *, queued: bool = False) -> Denial | None:
    """Why an operation on a member cannot be asked for now."""
    if facts.manifest.member_operation(kind, member.component_key) is None:
        return _undeclared(facts, kind, f"a member of {member.component_key}")
    if kind in UNASKED:
        return Denial(Code.ACTION_NOT_ALLOWED, UNASKED[Kind(kind)])
    if (denial := _not_in_mode(facts, kind)) is not None:
        return denial
    if member.status == MemberStatus.REMOVED:
        return Denial(Code.INVALID_STATE, "the member is removed; what is left is its history")
    if kind == Kind.REMOVE:
        return _removal_denial(facts, member, queued=queued)
    if facts.desired_state == DesiredState.DECOMMISSIONED:
        return busy_denial(facts, member.id) or _not_running(facts)
    if kind == Kind.REPLACE and (denial := _replacement_denial(facts, member)) is not None:
        return denial
    if queued:
        return None
    return busy_denial(facts, member.id) or _not_running(facts) or _wrong_status(member, kind)


def _replacement_denial(facts: InstanceFacts, member: MemberView) -> Denial | None:
    """A replacement that was called off leaves both members: without this, each new one would add another."""
    component_key = member.component_key
    _, high = facts.limits(component_key)
    if facts.present(component_key) > high:
        detail = f"{component_key} has more than {high} since a replace was called off: retry that, or remove one"
        return Denial(Code.COMPONENT_LIMIT, detail)
    going = next((op for op in facts.open if op.kind == Kind.REPLACE and op.member_id == member.id), None)
    if going is not None:
        return Denial(Code.OPERATION_RUNNING, f"operation {going.id} replaces this member already", going)
    return None


def _wrong_status(member: MemberView, kind: str) -> Denial | None:
    allowed = _FROM.get(kind, _WORKING)
    if member.status in allowed:
        return None
    names = ", ".join(sorted(status.value for status in allowed))
    return Denial(Code.ACTION_NOT_ALLOWED, f"the member is {member.status}; {kind} is for: {names}")


def _removal_denial(facts: InstanceFacts, member: MemberView, *, queued: bool) -> Denial | None:
    """It pre-empts what else is done to the member, but not what is done to the whole instance."""
    preempted = [op.id for op in facts.open if op.member_ids and op.kind != Kind.REMOVE]
    waits = queued and not any(op.kind == Kind.REMOVE and member.id in op.member_ids for op in facts.open)
    busy = None if waits else busy_denial(facts, member.id, ignoring=preempted)
    if (denial := busy or _not_running(facts)) is not None:
        return denial
    if member.component_key == facts.manifest.primary.key and not member.replaces_member_id:
        return Denial(Code.ACTION_NOT_ALLOWED, f"{member.component_key} goes with the instance: decommission that")
    return _removal_limit(facts, member.component_key)


def _removal_limit(facts: InstanceFacts, component_key: str) -> Denial | None:
    low, _ = facts.limits(component_key)
    if facts.staying(component_key) - 1 < low:
        return Denial(Code.COMPONENT_LIMIT, f"{component_key} needs at least {low}")
    return None


def turn_denial(facts: InstanceFacts, operation: OperationRecord, member: MemberView | None) -> Denial | None:
    """Why a dequeued operation is no longer allowed. Room for a removal was kept when it was queued."""
    if member is None:
        return _not_deployed(facts) or _wrong_state(facts, operation.kind)
    if operation.kind == Kind.REMOVE:
        return None
    return _not_running(facts) or _wrong_status(member, operation.kind)


def addition_denial(facts: InstanceFacts, component_key: str, count: int = 1) -> Denial | None:
    """Why that many more members of a component cannot be added now."""
    if facts.manifest.member_operation(Kind.ADD, component_key) is None:
        return _undeclared(facts, Kind.ADD, f"a member of {component_key}")
    if (denial := _not_in_mode(facts, Kind.ADD)) is not None:
        return denial
    if facts.ended:
        return Denial(Code.INVALID_STATE, "the instance is decommissioned already")
    whole = next((operation for operation in facts.open if not operation.member_ids), None)
    if whole is not None:
        return _running(whole)
    if (denial := _not_running(facts)) is not None:
        return denial
    _, high = facts.limits(component_key)
    if facts.present(component_key) + count > high:
        return Denial(Code.COMPONENT_LIMIT, f"{component_key} has at most {high}")
    return None


def mode_denial(facts: InstanceFacts, key: str, machines: int) -> Denial | None:
    """Why an instance with members on that many machines cannot be of another mode now."""
    mode = facts.manifest.mode(key)
    if mode is None:
        known = ", ".join(mode.key for mode in facts.manifest.modes) or "none"
        return Denial(Code.INPUTS_INVALID, f"{facts.manifest.slug} has no mode {key!r}; it has: {known}")
    if facts.ended:
        return Denial(Code.INVALID_STATE, "the instance is decommissioned already")
    if facts.desired_state == DesiredState.DECOMMISSIONED:
        return _not_running(facts)
    counts = {key: facts.present(key) for key in facts.counts}
    if (reason := mode_problem(mode, counts, machines)) is not None:
        return Denial(Code.ACTION_NOT_ALLOWED, f"its members do not fit the mode: {reason}")
    undone = next((op for op in facts.open if mode.actions and op.kind not in {*mode.actions, Kind.DEPLOY}), None)
    return None if undone is None else _running(undone)


def retry_denial(facts: InstanceFacts, operation: OperationView) -> Denial | None:
    """A failed or cancelled operation is run again in place, unless a later one took over its target."""
    if operation.state not in RETRIED_FROM:
        return Denial(Code.INVALID_STATE, f"only what failed can be retried; this one is {operation.state}")
    if operation.kind == Kind.RESIZE:
        return Denial(Code.INVALID_STATE, "ask for the resize again, with the size that is wanted now")
    if not operation.is_latest:
        return Denial(Code.INVALID_STATE, "only the newest operation can be retried; a later one took over")
    if facts.ended or MemberStatus.REMOVED in {operation.member_status, operation.replacement_status}:
        return Denial(Code.INVALID_STATE, "its target no longer exists")
    if operation.error is not None and not operation.error.retryable:
        return Denial(Code.ACTION_NOT_ALLOWED, f"a retry would not help: {operation.error.detail}")
    if denial := busy_denial(facts, operation.member_id, operation.replacement_member_id):
        return denial
    if operation.kind != Kind.DECOMMISSION and facts.desired_state == DesiredState.DECOMMISSIONED:
        return _not_running(facts)
    if operation.member_id is not None and (denial := _not_running(facts)) is not None:
        return denial
    if operation.kind == Kind.REMOVE and operation.component_key is not None:
        return _removal_limit(facts, operation.component_key)
    return None


def cancel_denial(operation: OperationRecord) -> Denial | None:
    if operation.state.is_final:
        return Denial(Code.INVALID_STATE, f"the operation is {operation.state} already")
    if operation.kind in NEVER_CANCELLED:
        return Denial(Code.ACTION_NOT_ALLOWED, f"{operation.kind} cannot be called off")
    if operation.cancel_requested:
        return Denial(Code.INVALID_STATE, "its controller is asked to stop already")
    return None


def forget_denial(facts: InstanceFacts, member: MemberView) -> Denial | None:
    """Only what a failed removal could not prove to be gone is written off."""
    if member.status == MemberStatus.REMOVED:
        return Denial(Code.INVALID_STATE, "the member is removed already")
    if denial := busy_denial(facts, member.id):
        return denial
    if (member.last_kind, member.last_state) != (Kind.REMOVE, OperationState.FAILED):
        return Denial(Code.ACTION_NOT_ALLOWED, "only a member whose removal failed can be forgotten")
    return None


def abandon_denial(facts: InstanceFacts) -> Denial | None:
    last = facts.last_operation
    if facts.ended:
        return Denial(Code.INVALID_STATE, "the instance is decommissioned already")
    if denial := busy_denial(facts, None):
        return denial
    if last is None or (last.kind, last.state) != (Kind.DECOMMISSION, OperationState.FAILED):
        return Denial(Code.ACTION_NOT_ALLOWED, "only an instance whose decommission failed can be abandoned")
    return None


_WRITE_OFF = "Write it off without proof that it is gone"


def instance_actions(facts: InstanceFacts) -> list[AllowedAction]:
    id = facts.instance_id
    actions = []
    for declared in facts.manifest.operations:
        if declared.kind == Kind.ADD:
            keys = [declared.component] if declared.component else [c.key for c in facts.manifest.components]
            if any(addition_denial(facts, key) is None for key in keys):
                actions.append(Offer.ADD_MEMBERS.action(Kind.ADD, declared.title, instance_id=id))
        elif instance_denial(facts, declared.kind) is None:
            actions.append(Offer.REQUEST_OPERATION.action(declared.kind, declared.title, instance_id=id))
    if abandon_denial(facts) is None:
        actions.append(Offer.ABANDON_INSTANCE.action("abandon", _WRITE_OFF, instance_id=id))
    return actions


def member_actions(facts: InstanceFacts, member: MemberView) -> list[AllowedAction]:
    actions = []
    for kind in dict.fromkeys(operation.kind for operation in facts.manifest.operations):
        declared = facts.manifest.member_operation(kind, member.component_key)
        if declared is not None and member_denial(facts, member, kind) is None:
            actions.append(Offer.REQUEST_OPERATION.action(kind, declared.title, instance_id=facts.instance_id))
    if forget_denial(facts, member) is None:
        actions.append(Offer.FORGET_MEMBER.action("forget", _WRITE_OFF, member_id=member.id))
    return actions


def operation_actions(facts: InstanceFacts | None, operation: OperationView) -> list[AllowedAction]:
    """List what can be done; what its instance is like matters only to those that may be retried."""
    id = operation.id
    actions = []
    if facts is not None and retry_denial(facts, operation) is None:
        title = "Run the operation again from its first step"
        actions.append(Offer.RETRY_OPERATION.action("retry", title, operation_id=id))
    if cancel_denial(operation) is None:
        actions.append(Offer.CANCEL_OPERATION.action("cancel", "Call the operation off", operation_id=id))
    return actions
