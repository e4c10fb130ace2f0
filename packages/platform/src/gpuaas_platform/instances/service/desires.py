"""Operations that change the desired state of an instance: its state, its inputs, its version."""

from gpuaas_contract.base import JsonObject
from gpuaas_contract.events import InstanceEvent
from gpuaas_contract.instances import DesiredState
from gpuaas_contract.manifest import Manifest, OperationKind
from gpuaas_contract.operations import Kind
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.catalogue.service.versions import manifest_of_version, refuse_retired
from gpuaas_platform.catalogue.storage import versions as catalogue_store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.instances.records import InstanceView, LiveMember
from gpuaas_platform.instances.service.inputs import check_inputs, check_of, refuse_problems
from gpuaas_platform.instances.storage import instances as store
from gpuaas_platform.operations.records import PreviousDesire

_OWN_FIELDS: dict[str, set[str]] = {
    Kind.UPGRADE: {"version", "inputs"},
    Kind.CONFIGURE: {"inputs"},
    Kind.REPLACE: {"allocation_id"},
}
"""The fields that the platform itself reads from the input of a kind; the rest is the app's, by its own schema."""
_EVENTS: dict[str, InstanceEvent] = {
    Kind.START: InstanceEvent.STARTING,
    Kind.STOP: InstanceEvent.STOPPING,
    Kind.UPGRADE: InstanceEvent.UPGRADING,
    Kind.CONFIGURE: InstanceEvent.CONFIGURING,
    Kind.DECOMMISSION: InstanceEvent.DECOMMISSIONING,
}


def check_input(tx: Transaction, tenant_id: str, declared: OperationKind, input: JsonObject) -> JsonObject:
    """Check the app's part by its schema, with defaults; the platform's own part as it came."""
    own = {key: value for key, value in input.items() if key in _OWN_FIELDS.get(declared.kind, ())}
    rest = {key: value for key, value in input.items() if key not in own}
    return {**check_inputs(tx, tenant_id, rest, declared.input_schema, "/input"), **own}


async def check_desire(
    tx: Transaction, instance: InstanceView, manifest: Manifest, kind: str, input: JsonObject
) -> JsonObject:
    """Refuse what could not be wanted; return the input as it is kept."""
    if kind == Kind.CONFIGURE:
        wanted = _object(input, "inputs")
        return {**input, "inputs": check_inputs(tx, instance.tenant_id, wanted, manifest.inputs, "/input/inputs")}
    if kind != Kind.UPGRADE:
        return input
    version = input.get("version")
    found = await catalogue_store.get_version(tx, manifest.slug, version) if isinstance(version, str) else None
    if found is None:
        raise _invalid("/input/version", f"there is no {manifest.slug} {version!r}: name a published version")
    if found.id == instance.app_version_id:
        raise Refusal(Code.ACTION_NOT_ALLOWED, f"the instance has version {version} already")
    refuse_retired(found)
    newer = manifest_of_version(found)
    _check_members(manifest, newer, await store.list_live(tx, instance.id))
    if "inputs" in input:
        wanted = _object(input, "inputs")
        return {**input, "inputs": check_inputs(tx, instance.tenant_id, wanted, newer.inputs, "/input/inputs")}
    verdict = tx.verdict(check_of(instance.tenant_id, instance.inputs, newer.inputs, "/input/inputs"))
    refuse_problems(verdict, f"{newer.slug} {newer.version} needs other inputs: ")
    return input


def _object(input: JsonObject, key: str) -> JsonObject:
    value = input.get(key)
    if not isinstance(value, dict):
        raise _invalid(f"/input/{key}", f"{key} is needed: an object")
    return value


def _invalid(pointer: str, detail: str) -> Refusal:
    return Refusal(Code.INPUTS_INVALID, detail, errors=[FieldError(pointer=pointer, detail=detail)])


def _check_members(present: Manifest, newer: Manifest, members: list[LiveMember]) -> None:
    """The version must know what the instance is made of, and have room for it where it has less than before."""
    keys = [member.component_key for member in members]
    for key in sorted(set(keys)):
        before, component = present.component(key), newer.component(key)
        if component is None or (before and keys.count(key) > component.max < before.max):
            detail = f"{newer.slug} {newer.version} has no place for {keys.count(key)} members of {key}"
            raise Refusal(Code.PLACEMENT_INVALID, detail)


async def apply(tx: Transaction, instance: InstanceView, kind: str, input: JsonObject) -> PreviousDesire | None:
    """Want it from now on. Returns what was wanted before, to be given back if the work never begins."""
    if kind not in _EVENTS:
        return None
    before = PreviousDesire(instance.desired_state, instance.inputs, instance.app_version_id, instance.ready_since)
    id = instance.id
    if kind == Kind.UPGRADE:
        version = await catalogue_store.get_version(tx, instance.app_slug, input["version"])
        assert version is not None
        row = await store.set_desired(tx, id, app_version_id=version.id, inputs=input.get("inputs"))
    elif kind == Kind.CONFIGURE:
        row = await store.set_desired(tx, id, inputs=input["inputs"])
    else:
        wanted = {Kind.START: DesiredState.RUNNING, Kind.STOP: DesiredState.STOPPED}.get(Kind(kind))
        row = await store.set_desired(tx, id, desired_state=wanted or DesiredState.DECOMMISSIONED)
    await tx.changed(_EVENTS[kind], row, project_id=row.project_id, instance_id=id)
    return before
