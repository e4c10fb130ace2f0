"""The receipt of one machine: what is left, what is exempt, and what cannot be known."""

import pytest

from gpuaas_sdk import CommandResult, MachineReceipt, MachineUnreachableError
from gpuaas_sdk.testing import FakeMachine, probed
from slurm_app.slurm import receipt
from slurm_app.slurm.role_removal import EVERYTHING, RoleRemoval
from slurm_app.slurm.roles import Role

CHECKS = receipt.checks(EVERYTHING)
LISTINGS = receipt.listings(EVERYTHING)
COMMANDS = receipt.commands(EVERYTHING)


async def read(answer: CommandResult) -> MachineReceipt:
    return await receipt.read_receipt(FakeMachine(answers={"": answer}))


async def read_found(recorded: str = "sha256:0, 9 names", **found: str) -> MachineReceipt:
    return await read(probed(COMMANDS, recorded=recorded, **found))


async def test_nothing_left_is_clean_and_logs_are_listed() -> None:
    found = await read_found(logs="/var/log/slurm/slurmd.log", fences="/var/lib/gpuaas/fence/ins_1")
    assert found.clean
    assert [check.check for check in found.checks] == ["recorded", *CHECKS, *LISTINGS]
    listed = {check.check: (check.found, check.expected) for check in found.checks if check.check in LISTINGS}
    assert listed["logs"][0] == "/var/log/slurm/slurmd.log"
    assert listed["fences"][0] == "/var/lib/gpuaas/fence/ins_1"
    assert all(why.startswith("exempt: ") for _, why in listed.values())


@pytest.mark.parametrize("key", CHECKS)
async def test_anything_left_is_a_failure_with_evidence(key: str) -> None:
    found = await read_found(**{key: "something"})
    assert not found.clean
    (left,) = found.left
    assert (left.check, left.found, left.ok) == (key, "something", False)


async def test_without_a_record_what_is_found_is_unknown_not_ours() -> None:
    found = await read_found(recorded="", users="munge")
    assert found.left[0].ok is None
    assert not found.clean
    assert (await read_found(recorded="")).clean


async def test_what_a_machine_has_that_the_app_never_came_to_is_somebody_elses() -> None:
    answer = probed(COMMANDS, recorded="", users="munge")
    machine = FakeMachine(answers={"": answer})
    assert (await receipt.read_receipt(machine, came=False)).clean
    machine.answers[""] = probed(COMMANDS, recorded="sha256:0, 9 names", users="munge")
    assert not (await receipt.read_receipt(machine, came=False)).clean


async def test_a_check_that_is_missing_is_unknown() -> None:
    before_users = list(COMMANDS)[: list(COMMANDS).index("users")]
    found = await read(probed(before_users, recorded="sha256:0, 9 names"))
    assert not found.clean
    assert {check.check for check in found.left} == {*COMMANDS} - {*before_users}
    assert {check.ok for check in found.left} == {None}


async def test_no_answer_is_never_a_clean_receipt() -> None:
    class Away(FakeMachine):
        async def read(self, script: str, *, timeout: float = 30) -> CommandResult:
            raise MachineUnreachableError("away")

    for unseen in (await read(CommandResult(255, "", "gone")), await receipt.read_receipt(Away())):
        assert not unseen.clean
        assert [check.check for check in unseen.checks] == ["recorded", *CHECKS, *LISTINGS]
        assert {check.ok for check in unseen.checks} == {None}


def test_what_a_staying_role_needs_is_not_looked_for() -> None:
    """A worker that leaves the controller's machine leaves the controller's things there."""
    leaves = RoleRemoval(frozenset({Role.WORKER}), frozenset({Role.CONTROLLER}))
    commands = receipt.checks(leaves)
    assert "slurmd" in commands["processes"]
    assert "slurmctld" not in commands["processes"] + commands["units"] + commands["paths"]
    assert "munge" not in " ".join(commands.values())
    assert "/var/lib/slurm/slurmd" in commands["paths"]
    assert set(CHECKS) > set(commands)
