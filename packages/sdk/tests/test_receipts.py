"""Receipts: what a probe makes of what the machine says, and what proves a removal."""

import subprocess
from datetime import UTC, datetime

import pytest

from gpuaas_contract.instances import Member, MemberStatus
from gpuaas_sdk import (
    CommandResult,
    MachineReceipt,
    MachineUnreachableError,
    OperationFailed,
    ReceiptCheck,
    probe,
    prove_removal,
)
from gpuaas_sdk.runtime.receipts import probe_script
from gpuaas_sdk.testing import FakeMachine, probed

CHECKS = {"users": "getent passwd demo || true", "paths": "ls -d /opt/demo || true"}


def member(number: int = 1, allocation_id: str = "alc_1") -> Member:
    now = datetime.now(UTC)
    return Member(
        id=f"mem_{number}",
        revision=1,
        created_at=now,
        updated_at=now,
        instance_id="ins_1",
        component_key="worker",
        allocation_id=allocation_id,
        status=MemberStatus.REMOVING,
        correlation_id="cor_1",
    )


def receipt(*oks: bool | None, hostname: str = "node-1", allocation_id: str = "alc_1") -> MachineReceipt:
    checks = tuple(ReceiptCheck("paths", "ls", "/opt/demo" if ok is False else "nothing", ok) for ok in oks)
    return MachineReceipt(hostname, allocation_id, checks)


async def test_a_probe_is_one_round_trip_and_says_what_is_left() -> None:
    machine = FakeMachine(answers={"getent": probed(CHECKS, users="demo:x:998")})
    found = await probe(machine, CHECKS)
    assert len(machine.reads) == 1
    assert [(check.check, check.command, check.ok) for check in found.checks] == [
        ("users", CHECKS["users"], False),
        ("paths", CHECKS["paths"], True),
    ]
    assert [check.found for check in found.checks] == ["demo:x:998", "nothing"]
    assert not found.clean


async def test_a_check_that_failed_is_unknown_whatever_it_printed() -> None:
    found = await probe(FakeMachine(answers={"getent": probed(CHECKS, failed=["paths"])}), CHECKS)
    assert [(check.ok, check.found) for check in found.checks] == [(True, "nothing"), (None, "unknown: exit status 1")]


@pytest.mark.parametrize("name", ["two words", "$(reboot)", "a`b", 'quo"te', "", "naïve"])
async def test_the_name_of_a_check_is_a_plain_word(name: str) -> None:
    with pytest.raises(ValueError, match="not a name for a check"):
        await probe(FakeMachine(), {name: "true"})


@pytest.mark.parametrize(
    "answer", [MachineUnreachableError("off"), CommandResult(255, "", "gone"), CommandResult(0, "noise", "")]
)
async def test_no_answer_is_unknown_for_every_check(answer: CommandResult | Exception) -> None:
    found = await probe(FakeMachine(answers={"": answer}), CHECKS)
    assert [check.ok for check in found.checks] == [None, None]
    assert all(check.found.startswith("unknown: ") for check in found.checks)


def test_the_script_keeps_checks_apart() -> None:
    checks = {
        "left": "listed a b",
        "nothing": "true",
        "half": "false; echo after",
        "pipe": "false | cat",
        "unset": 'echo "$nobody_set_this"',
        "ends": "exit 3",
        "last": "echo c",
    }
    script = probe_script(checks, "listed() { printf '%s\\n' \"$@\"; }")
    done = subprocess.run(["bash", "-c", f"set -euo pipefail\n{script}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line]
    marks = [line.split()[1:] for line in lines if line.startswith("==")]
    assert [name for name, _ in marks] == list(checks)
    assert [name for name, status in marks if status != "0"] == ["half", "pipe", "unset", "ends"]
    assert [line for line in lines if not line.startswith("==")] == ["a", "b", "c"]


def test_a_proof_has_an_entry_for_each_member() -> None:
    result = prove_removal([member(1), member(2)], [receipt(True)])["receipt"]
    assert result["ok"] is True
    assert [(entry["member_id"], entry["hostname"], entry["clean"]) for entry in result["members"]] == [
        ("mem_1", "node-1", True),
        ("mem_2", "node-1", True),
    ]
    assert set(result["members"][0]["checks"][0]) == {"check", "command", "expected", "found", "ok", "at"}


@pytest.mark.parametrize(
    ("found", "code", "words"),
    [
        (receipt(True, False), "teardown_incomplete", "node-1: paths: /opt/demo"),
        (receipt(False, None), "teardown_incomplete", "could not be verified on node-1"),
        (receipt(True, None), "teardown_unverified", "could not be verified on node-1"),
        (receipt(), "teardown_unverified", "could not be verified on node-1"),
    ],
)
def test_what_is_left_or_unknown_or_was_not_checked_is_no_proof(found: MachineReceipt, code: str, words: str) -> None:
    with pytest.raises(OperationFailed, match=words) as caught:
        prove_removal([member()], [found])
    assert (caught.value.code, caught.value.retryable) == (code, True)
    assert caught.value.result["receipt"]["ok"] is False
    assert caught.value.evidence == caught.value.result


def test_every_machine_counts_also_one_without_a_member() -> None:
    other = receipt(False, hostname="node-2", allocation_id="alc_2")
    with pytest.raises(OperationFailed, match="node-2: paths: /opt/demo"):
        prove_removal([member()], [receipt(True), other])


def test_all_receipts_of_a_machine_count() -> None:
    with pytest.raises(OperationFailed, match="node-1: paths: /opt/demo") as caught:
        prove_removal([member()], [receipt(False), receipt(True)])
    (entry,) = caught.value.result["receipt"]["members"]
    assert [check["ok"] for check in entry["checks"]] == [False, True]


def test_a_member_whose_machine_has_no_receipt_is_not_proven_to_be_gone() -> None:
    with pytest.raises(OperationFailed, match="could not be verified on alc_2") as caught:
        prove_removal([member(), member(2, "alc_2")], [receipt(True)])
    assert caught.value.code == "teardown_unverified"


def test_without_a_machine_there_is_no_proof() -> None:
    with pytest.raises(OperationFailed, match="no machine was checked"):
        prove_removal([], [])
