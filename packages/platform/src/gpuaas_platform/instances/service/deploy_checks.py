"""Find everything that stands in the way of a deploy: a preflight shows it, a deploy is refused by it."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpuaas_contract.artifacts import ArtifactStatus
from gpuaas_contract.base import JsonObject
from gpuaas_contract.credentials import CredentialStatus
from gpuaas_contract.findings import Finding, Severity
from gpuaas_contract.instances import InstanceDeploy
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.allocations.records import AllocationRecord
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.artifacts.storage import artifacts as artifact_store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.service.presence import find_controller
from gpuaas_platform.instances.rules.placements import Machines, check_counts, check_placements, choose_mode, problem
from gpuaas_platform.instances.service.inputs import check_of, with_defaults
from gpuaas_platform.instances.storage import instances as store
from gpuaas_platform.vault.storage import credentials as credential_store

_CODES = {
    code.value: code for code in (Code.INPUTS_INVALID, Code.SCHEMA_TOO_SLOW, Code.NAME_TAKEN, Code.OPERATOR_UNUSABLE)
}
"""The code of a refusal, by its first finding; the others are about the placement."""


@dataclass(slots=True)
class DeployPlan:
    """The inputs of a deploy, and all that was found on the way."""

    allocations: Mapping[str, AllocationRecord] = field(default_factory=dict)
    inputs: JsonObject = field(default_factory=dict)
    mode: str | None = None
    findings: list[Finding] = field(default_factory=list)


async def check_deploy(
    tx: Transaction, tenant_id: str, body: InstanceDeploy, manifest: Manifest, *, lock: bool
) -> DeployPlan:
    """With `lock`, the allocations stay as they were found."""
    plan = DeployPlan(inputs=with_defaults(body.inputs, manifest.inputs))
    verdict = tx.verdict(check_of(tenant_id, body.inputs, manifest.inputs, "/inputs"))
    code = Code.SCHEMA_TOO_SLOW if verdict.too_slow else Code.INPUTS_INVALID
    for error in verdict.problems:
        plan.findings.append(problem(code.value, error.detail, error.pointer, "change the input"))
    machines = await find_machines(tx, body.project_id, [p.allocation_id for p in body.placement_intent], lock=lock)
    plan.allocations = machines.found
    plan.findings += check_placements(body.placement_intent, manifest, machines, "/placement_intent")
    counts = Counter(placement.component_key for placement in body.placement_intent)
    plan.findings += check_counts(counts, manifest, "/placement_intent")
    plan.mode, misfit = choose_mode(manifest, body.mode, body.placement_intent)
    plan.findings += [] if misfit is None else [misfit]
    if await store.has_live_name(tx, body.project_id, body.name):
        plan.findings.append(name_taken(body.name))
    plan.findings += await _check_artifacts(tx, manifest)
    plan.findings += await _check_access(tx, body, plan.allocations)
    if body.operator_account_id is not None:
        # Also whether it is connected: a deploy is not refused by that, a preflight says it.
        found = await find_controller(tx, manifest.slug, tenant_id, body.project_id, body.operator_account_id)
        plan.findings += [] if found is None else [found]
    return plan


async def find_machines(
    tx: Transaction, project_id: str, allocation_ids: Sequence[str], *, lock: bool, instance_id: str | None = None
) -> Machines:
    rows = await allocation_store.list_by_ids(tx, sorted(set(allocation_ids)), lock=lock)
    found = {row.id: row for row in rows if row.project_id == project_id}
    return Machines(found, await store.list_live_on(tx, list(found)), instance_id)


def name_taken(name: str) -> Finding:
    message = f"the project has an app instance named {name!r} already"
    return problem("name_taken", message, "/name", "choose another name, or decommission that one")


async def _check_access(
    tx: Transaction, body: InstanceDeploy, allocations: Mapping[str, AllocationRecord]
) -> list[Finding]:
    """A chosen credential is one of the project's own that can be delivered, and for machines that have none."""
    chosen = [] if body.access is None else [("/access", body.access.credential_id)]
    findings = []
    for number, placement in enumerate(body.placement_intent):
        if placement.access is None:
            continue
        pointer = f"/placement_intent/{number}/access"
        chosen.append((pointer, placement.access.credential_id))
        row = allocations.get(placement.allocation_id)
        if row is not None and row.shape.external is not None:
            message = f"{row.name} is an external machine, which is entered with the credential that it has"
            findings.append(problem("credential_unusable", message, pointer, "leave it away"))
    for pointer, credential_id in chosen:
        found = await credential_store.get(tx, credential_id)
        if found is None or found.project_id != body.project_id or found.status != CredentialStatus.ACTIVE:
            message = f"the project has no access credential {credential_id} that can be used"
            findings.append(problem("credential_unusable", message, pointer, "choose another one, or none"))
    return findings


async def _check_artifacts(tx: Transaction, manifest: Manifest) -> list[Finding]:
    missing = []
    for slot in manifest.artifacts:
        found = [] if slot.digest is None else await artifact_store.list_of_owner(tx, manifest.slug, None, slot.digest)
        if not any(row.status == ArtifactStatus.PROMOTED for row in found):
            missing.append(slot.name)
    action, version = "ask the app's publisher, or deploy another version", f"{manifest.slug} {manifest.version}"
    return [
        problem("artifact_missing", f"{version} has no promoted artifact {name}", "/version", action)
        for name in missing
    ]


def refuse_errors(findings: Sequence[Finding]) -> None:
    errors = [finding for finding in findings if finding.severity == Severity.ERROR]
    if errors:
        raise refusal_of(errors)


def refusal_of(errors: Sequence[Finding]) -> Refusal:
    """All at once. The code is that of the first."""
    return Refusal(
        _CODES.get(errors[0].code, Code.PLACEMENT_INVALID),
        "; ".join(error.message for error in errors),
        errors=[FieldError(pointer=error.pointer, detail=error.message) for error in errors],
    )
