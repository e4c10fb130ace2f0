"""The content of a teardown receipt, from the app's own report and from what the platform knows."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Unverified
from gpuaas_contract.receipts import RECEIPT_FORMAT, Verdict, canonical_bytes, digest
from gpuaas_platform.operations.records import OperationView, PlatformCheck, ReceiptMember, ReceiptOwner


def compose(
    owner: ReceiptOwner,
    operation: OperationView,
    members: Sequence[ReceiptMember],
    checks: Sequence[PlatformCheck],
    issued_at: datetime,
) -> JsonObject:
    """Judge anew: an app's `ok` alone proves nothing, and a member that no probe was made for is not verified.

    Of an instance that lives on, a member is meant that was written off: the receipt is about that one alone."""
    only = None if owner.ended_at is not None else members[0]
    write_off = owner.unverified if only is None else only.unverified
    machines = _machines(operation.result)
    probes = [probe for machine in machines.values() for probe in machine["probes"]]
    left = [f"{each['hostname']}: {each['check']}" for each in probes if each["ok"] is False]
    unverified = [f"{each['hostname']}: {each['check']}: not known" for each in probes if each["ok"] is None]
    left += [f"platform: {each.check}: {each.found}" for each in checks if each.ok is False]
    unverified += [f"platform: {each.check}: {each.found}" for each in checks if each.ok is None]
    shown = []
    for member in members:
        how = _removal(member, operation, machines)
        if how == "written_off":
            unverified.append(f"member {member.id} was written off: {_reason(member.unverified)}")
        elif how == "unproven":
            unverified.append(f"member {member.id} on {member.allocation_id}: no probe was made")
        shown.append(
            {
                "id": member.id,
                "component_key": member.component_key,
                "allocation_id": member.allocation_id,
                "removal": how,
                "operation_id": member.last_operation_id or operation.id,
            }
        )
    if owner.unverified is not None:
        unverified.append(f"the instance was written off: {_reason(owner.unverified)}")
    verdict = Verdict.SOMETHING_LEFT if left else Verdict.UNVERIFIED if unverified else Verdict.NOTHING_LEFT
    about = {} if only is None else {"member": {"id": only.id, "component_key": only.component_key}}
    return {
        "format": RECEIPT_FORMAT,
        **about,
        "instance": {"id": owner.id, "name": owner.name, "app": owner.app_slug, "app_version": owner.app_version},
        "tenant": {"id": owner.tenant_id, "name": owner.tenant_name},
        "project": {"id": owner.project_id, "name": owner.project_name},
        "operation": {
            "id": operation.id,
            "kind": operation.kind,
            "state": operation.state.value,
            "attempt": operation.attempt,
            "correlation_id": operation.correlation_id,
            "result_digest": digest(canonical_bytes(operation.result).decode()),
        },
        "requested_by": operation.requested_by,
        "write_off": None if write_off is None else write_off.model_dump(mode="json"),
        "times": {
            "deployed_at": _time(owner.created_at),
            "requested_at": _time(operation.created_at),
            "started_at": _time(operation.started_at),
            "operation_ended_at": _time(operation.ended_at),
            "instance_ended_at": _time(owner.ended_at),
            "issued_at": _time(issued_at),
        },
        "members": shown,
        "probes": probes,
        "probe_count": len(probes),
        "platform_checks": [
            {"check": each.check, "question": each.question, "found": each.found, "ok": each.ok} for each in checks
        ],
        "left": left,
        "unverified": unverified,
        "verdict": verdict.value,
    }


def _reason(unverified: Unverified | None) -> str:
    return "" if unverified is None else unverified.reason


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def _removal(member: ReceiptMember, operation: OperationView, machines: dict[str, JsonObject]) -> str:
    if member.unverified is not None:
        return "written_off"
    machine = machines.get(member.allocation_id)
    if machine is not None and member.id in machine["member_ids"] and machine["probes"]:
        return "probed"
    # Its own removal proved it, before the instance went.
    return "earlier" if member.removed_before else "unproven"


def _machines(result: JsonObject) -> dict[str, JsonObject]:
    """The probes by machine: members that shared one were probed together. What has no such form is no probe."""
    receipt = result.get("receipt")
    members = receipt.get("members") if isinstance(receipt, dict) else None
    machines: dict[str, JsonObject] = {}
    for member in members if isinstance(members, list) else []:
        if not isinstance(member, dict) or not isinstance(member.get("allocation_id"), str):
            continue
        allocation_id = member["allocation_id"]
        machine = machines.setdefault(allocation_id, {"member_ids": set(), "probes": []})
        machine["member_ids"].add(str(member.get("member_id")))
        checks = member.get("checks")
        for check in checks if isinstance(checks, list) else []:
            if isinstance(check, dict):
                probe = _probe(allocation_id, member, check)
                if probe not in machine["probes"]:
                    machine["probes"].append(probe)
    return machines


def _probe(allocation_id: str, member: JsonObject, check: JsonObject) -> JsonObject:
    def text(key: str, of: Any = check) -> str:
        return str(of.get(key, ""))

    ok = check.get("ok")
    return {
        "allocation_id": allocation_id,
        "hostname": text("hostname", member) or allocation_id,
        "check": text("check"),
        "command": text("command"),
        "expected": text("expected"),
        "found_digest": digest(text("found")),
        "ok": ok if isinstance(ok, bool) else None,
        "at": text("at"),
    }
