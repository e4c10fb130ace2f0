"""Teardown receipts: the checks made on each machine after a removal, with the command and the result of each."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Member
from gpuaas_sdk.machines.base import MachineUnreachableError, ObservedMachine
from gpuaas_sdk.runtime.errors import OperationFailed

NOTHING = "nothing"
_FOUND_LIMIT = 2_000
_DETAIL_LIMIT = 2_000
MARK = "==gpuaas-check=="
_NAME = re.compile(r"[\w.-]+", re.ASCII)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


@dataclass(frozen=True, slots=True)
class ReceiptCheck:
    check: str
    command: str
    found: str
    ok: bool | None
    """None means unknown, which never counts as a yes."""
    expected: str = NOTHING
    at: str = field(default_factory=_now)


@dataclass(frozen=True, slots=True)
class MachineReceipt:
    """The checks of one machine."""

    hostname: str
    allocation_id: str
    checks: tuple[ReceiptCheck, ...]

    @property
    def clean(self) -> bool:
        """A machine that nothing was checked on is not clean."""
        return bool(self.checks) and all(check.ok is True for check in self.checks)

    @property
    def left(self) -> tuple[ReceiptCheck, ...]:
        """The checks that did not pass, the unknown ones among them."""
        return tuple(check for check in self.checks if check.ok is not True)

    def with_checks(self, *more: ReceiptCheck) -> "MachineReceipt":
        return replace(self, checks=(*self.checks, *more))


async def probe(
    machine: ObservedMachine, checks: Mapping[str, str], *, functions: str = "", timeout: float = 60
) -> MachineReceipt:
    """Run all checks in one round trip. Each is a command that prints what is left; `functions` is bash they share.

    A check that failed, and every check on a machine that does not answer, is unknown. The name of a check is a
    word of letters, digits, `_`, `.` and `-`.
    """
    if odd := [check for check in checks if not _NAME.fullmatch(check)]:
        raise ValueError(f"not a name for a check: {odd[0]!r}; use letters, digits, _, . and -")
    at = _now()
    try:
        result = await machine.read(probe_script(checks, functions), timeout=timeout)
    except MachineUnreachableError as error:
        sections, otherwise = {}, str(error)
    else:
        sections, otherwise = _sections(result.stdout), f"the probe ended with exit status {result.exit_status}"

    def judge(check: str, command: str) -> ReceiptCheck:
        status, found = sections.get(check, (None, ""))
        if status is None:
            ok, found = None, f"unknown: {otherwise}"
        elif status != 0:
            ok, found = None, f"unknown: exit status {status}"
        else:
            ok, found = not found, found or NOTHING
        return ReceiptCheck(check, command, found[:_FOUND_LIMIT], ok, at=at)

    return MachineReceipt(machine.hostname, machine.allocation_id, tuple(judge(*check) for check in checks.items()))


def probe_script(checks: Mapping[str, str], functions: str = "") -> str:
    # Not as the condition of an `if`: there bash ignores `set -e`, and a check that failed half-way would pass.
    sections = (
        f'found=$(set -eo pipefail\n{command}\n)\nstatus=$?\nprintf \'%s\\n%s\\n\' "{MARK} {check} $status" "$found"'
        for check, command in checks.items()
    )
    return "\n".join(["set +e", functions, *sections, "exit 0", ""])


def _sections(text: str) -> dict[str, tuple[int, str]]:
    found: dict[str, tuple[int, list[str]]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if marked := re.fullmatch(rf"{MARK} (\S+) (\d+)", line):
            lines = []
            found[marked[1]] = (int(marked[2]), lines)
        elif line:
            lines.append(line)
    return {check: (status, "\n".join(lines)) for check, (status, lines) in found.items()}


def prove_removal(members: Iterable[Member], receipts: Iterable[MachineReceipt]) -> JsonObject:
    """Return `{"receipt": …}`, the result of the operation that removed these members.

    There is one entry for each member; members that shared a machine share its checks. Where something is left, or
    could not be checked, on any of the machines, the operation fails with the receipt as its result. A member whose
    machine has no receipt is not proven to be gone.
    """
    by_allocation: dict[str, MachineReceipt] = {}
    for receipt in receipts:
        before = by_allocation.get(receipt.allocation_id)
        by_allocation[receipt.allocation_id] = receipt if before is None else before.with_checks(*receipt.checks)
    machines = []
    for member in members:
        unchecked = MachineReceipt(member.allocation_id, member.allocation_id, ())
        machines.append((member, by_allocation.setdefault(member.allocation_id, unchecked)))
    entries = [
        {
            "member_id": member.id,
            "component_key": member.component_key,
            "hostname": machine.hostname,
            "allocation_id": machine.allocation_id,
            "clean": machine.clean,
            "checks": [asdict(check) for check in machine.checks],
        }
        for member, machine in machines
    ]
    proven = bool(entries) and all(machine.clean for machine in by_allocation.values())
    result = {"receipt": {"ok": proven, "members": entries}}
    if not proven:
        raise _not_removed(by_allocation.values(), result)
    return result


def _not_removed(receipts: Iterable[MachineReceipt], result: JsonObject) -> OperationFailed:
    unclean = [receipt for receipt in receipts if not receipt.clean]
    left = [f"{each.hostname}: {c.check}: {c.found}" for each in unclean for c in each.left if c.ok is False]
    unknown = sorted({each.hostname for each in unclean if not each.checks or any(c.ok is None for c in each.left)})
    words = [f"not everything is gone: {'; '.join(left)}"] if left else []
    if unknown:
        words.append(f"could not be verified on {', '.join(unknown)}, see the receipt")
    return OperationFailed(
        "teardown_incomplete" if left else "teardown_unverified",
        ("; ".join(words) or "no machine was checked")[:_DETAIL_LIMIT],
        retryable=True,
        result=result,
        evidence=result,
    )
