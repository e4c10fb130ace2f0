"""Findings in the recorded traffic of a controller."""

import base64
import binascii
import json
import math
import re
from collections import defaultdict
from contextlib import suppress

from gpuaas_conformance.proxy import Exchange
from gpuaas_conformance.rules import Findings

DETAIL_LIMIT = 8 * 1024
MOST_REFUSED = 8
"""Requests that may be on their way when a lease is lost, before a controller has stopped."""
_OPERATION = re.compile(r"/v1/operations/([a-z0-9_]+)/([a-z]+)$")
_AT = r"^(\d+\.\d+) \S+ \S+: "
_STEP_BEGINS = re.compile(_AT + r"Start(?:ing|ed) (gpuaas-op_\S+)\.service\b", re.MULTILINE)
_STEP_ENDS = re.compile(_AT + r"(gpuaas-op_\S+)\.service: (?:Deactivated|Main process exited|Failed)", re.MULTILINE)
_WROTE = re.compile(_AT + r"wrote (/.*) for op_[a-z0-9]+ \(.*, token \d+\)$", re.MULTILINE)
COARSE = 0.02
"""Seconds by which the time of a file may differ from that of the journal: the clock for files ticks slowly."""
UNTIL_SAID = 10.0
"""Seconds between a file's arrival and the line in the journal that says so, on a busy machine."""
_CHANGE = re.compile(r"^(?:Started|Starting|wrote) .*\b(op_[a-z0-9]+)\b.*, token (\d+)\)", re.MULTILINE)


def operation_call(exchange: Exchange) -> tuple[str, str] | None:
    """Which operation it is about, and what is asked."""
    found = _OPERATION.match(exchange.path)
    return (found[1], found[2]) if found and exchange.method == "POST" else None


def claims(exchanges: list[Exchange]) -> dict[str, list[tuple[int, int]]]:
    """By operation: when it was claimed, and the fencing token."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for exchange in exchanges:
        call = operation_call(exchange)
        if call and call[1] == "claim" and exchange.accepted and "fencing_token" in exchange.answer_json:
            found[call[0]].append((exchange.number, int(exchange.answer_json["fencing_token"])))
    return found


def look_at_steps(exchanges: list[Exchange], findings: Findings) -> None:
    announced: set[tuple[str, int, str]] = set()
    for exchange in exchanges:
        call = operation_call(exchange)
        if call is None or call[1] != "steps" or not exchange.accepted:
            continue
        report = exchange.json
        key = (call[0], int(report["fencing_token"]), str(report["key"]))
        if report["status"] == "running":
            announced.add(key)
        else:
            words = f"{call[0]}: step {report['key']} ended without having been announced under that claim"
            findings.look("announced", key in announced, words)


def look_at_details(exchanges: list[Exchange], findings: Findings) -> None:
    for exchange in exchanges:
        if re.fullmatch(r"/v1/members/[a-z0-9_]+/report", exchange.path) and exchange.accepted:
            size = len(json.dumps(exchange.json.get("adapter_detail") or {}))
            findings.look("small-detail", size <= DETAIL_LIMIT, f"an adapter_detail of {size} bytes")


def look_at_readiness(exchanges: list[Exchange], member_ids: set[str], findings: Findings) -> None:
    """Of one deploy: at the first Ready, every member has been reported as ready, or is with it."""
    ready: set[str] = set()
    for exchange in exchanges:
        member = re.fullmatch(r"/v1/members/([a-z0-9_]+)/report", exchange.path)
        if member and exchange.accepted and exchange.json.get("status") == "ready":
            ready.add(member[1])
        call = operation_call(exchange)
        if call and call[1] == "complete" and exchange.accepted:
            statuses = exchange.json.get("member_statuses") or {}
            ready |= {id for id, status in statuses.items() if status == "ready"}
        if not re.fullmatch(r"/v1/app-instances/[a-z0-9_]+/report", exchange.path) or not exchange.accepted:
            continue
        conditions = exchange.json.get("conditions") or []
        if any(c["type"] == "Ready" and c["status"] == "true" for c in conditions):
            missing = member_ids - ready
            findings.look("ready-last", not missing, f"Ready was reported before {', '.join(sorted(missing))} was")
            return


def look_at_leases(exchanges: list[Exchange], findings: Findings) -> None:
    """No write under an older token is accepted (the platform's part), and the old holder stops (the controller's)."""
    newest: dict[str, int] = {}
    refused: dict[tuple[str, int], int] = defaultdict(int)
    for exchange in exchanges:
        call = operation_call(exchange)
        if call is None:
            continue
        operation, what = call
        if what == "claim" and exchange.accepted:
            newest[operation] = int(exchange.answer_json.get("fencing_token", 0))
            continue
        token = exchange.json.get("fencing_token")
        if token is None or operation not in newest:
            continue
        if int(token) < newest[operation]:
            findings.look("stale-write", not exchange.accepted, f"a stale {what} of {operation} was accepted")
            refused[operation, int(token)] += 1
    for (operation, _), count in refused.items():
        words = f"{count} requests about {operation} after its lease was lost: it did not stop"
        findings.look("lease-lost", count <= MOST_REFUSED, words)


def look_at_machine_log(machine: str, log: str, findings: Findings) -> None:
    """Check the machines' own logs of changes: no older fencing token comes behind a newer one."""
    newest: dict[str, int] = {}
    for operation, token in _CHANGE.findall(log):
        words = f"{machine} was changed for {operation} under token {token}, after {newest.get(operation)}"
        findings.look("stale-write", int(token) >= newest.get(operation, 0), words)
        newest[operation] = max(int(token), newest.get(operation, 0))


def outside_the_fence(journal: str, changed: str, brought: set[str]) -> list[str]:
    """Of the files that the app brought, and that belong to root: those that were last changed when no step ran on the
    machine, and that no fenced write has put there. A daemon's files belong to its user, or are said to be restless.

    `changed` has lines with time, owner and path."""
    begun: dict[str, list[float]] = defaultdict(list)
    ended: dict[str, list[float]] = defaultdict(list)
    wrote: dict[str, list[float]] = defaultdict(list)
    for times, pattern in ((begun, _STEP_BEGINS), (ended, _STEP_ENDS), (wrote, _WROTE)):
        for at, name in pattern.findall(journal):
            times[name].append(float(at))
    steps = [
        (start, min((end for end in ended[unit] if end >= start), default=math.inf))
        for unit, starts in begun.items()
        for start in starts
    ]
    found = []
    for line in changed.splitlines():
        at, owner, path = line.split(" ", 2)
        if path not in brought or owner != "0":
            continue
        moment = float(at)
        in_step = any(start - COARSE <= moment <= end + COARSE for start, end in steps)
        if not in_step and not any(moment - COARSE <= said <= moment + UNTIL_SAID for said in wrote[path]):
            found.append(path)
    return sorted(found)


def secret_contents(exchanges: list[Exchange]) -> set[bytes]:
    """List the secrets that were delivered to the controller, as bytes."""
    found = set()
    for exchange in exchanges:
        if exchange.path.endswith("/unwrap") and exchange.accepted:
            value = str(exchange.answer_json.get("value", ""))
            found.add(value.encode())
            with suppress(binascii.Error, ValueError):
                found.add(base64.b64decode(value, validate=True))
    return {content for content in found if len(content) >= 8}


def secret_values(exchanges: list[Exchange]) -> set[str]:
    """List the secrets that were delivered to the controller, in every form in which they could be found again."""
    values = set()
    for exchange in exchanges:
        if exchange.path.endswith("/unwrap") and exchange.accepted:
            value = str(exchange.answer_json.get("value", ""))
            values.add(value)
            with suppress(binascii.Error, ValueError):
                values.add(base64.b64decode(value, validate=True).decode())
    return {value for value in values if len(value) >= 8}


def look_for_secrets(values: set[str], places: dict[str, str], findings: Findings) -> None:
    for place, text in places.items():
        shown = any(value in text for value in values)
        findings.look("secret-kept", not shown, f"a secret can be read in {place}")
