import pytest

from gpuaas_sdk.machines.base import CommandError, CommandResult, MachineUnreachableError
from slurm_app.slurm import receipt
from slurm_app.slurm.going import EVERYTHING, Going
from slurm_app.slurm.roles import Role

from .fake_machine import FakeMachine, said

CHECKS = receipt.checks(EVERYTHING)
LISTINGS = receipt.listings(EVERYTHING)


def probe(baseline: str = "yes", **found: str) -> str:
    lines = ["==gpuaas-check== baseline 0", baseline]
    for key in CHECKS:
        lines += [f"==gpuaas-check== {key} 0", found.get(key, "")]
    for key in LISTINGS:
        lines += [f"==gpuaas-check== {key} 0", found.get(key, "")]
    return "\n".join(lines) + "\n"


async def read(text: str) -> receipt.Receipt:
    return await receipt.read_receipt(FakeMachine(answers={"": said(text)}))


async def test_nothing_left_is_clean_and_logs_are_listed() -> None:
    found = await read(probe(logs="/var/log/slurm/slurmd.log", fences="/var/lib/gpuaas/fence/ins_1"))
    assert found.clean
    assert [check.check for check in found.checks] == [*CHECKS, *LISTINGS]
    listed = {check.check: (check.found, check.expected) for check in found.checks if check.check in LISTINGS}
    assert listed["logs"][0] == "/var/log/slurm/slurmd.log"
    assert listed["fences"][0] == "/var/lib/gpuaas/fence/ins_1"
    assert all(why.startswith("exempt: ") for _, why in listed.values())
    evidence = found.as_evidence()
    assert set(evidence["checks"][0]) == {"check", "command", "expected", "found", "ok", "at"}


@pytest.mark.parametrize("key", CHECKS)
async def test_anything_left_is_a_failure_with_evidence(key: str) -> None:
    found = await read(probe(**{key: "something"}))
    assert not found.clean
    (left,) = found.left
    assert (left.check, left.found, left.ok) == (key, "something", False)


async def test_without_a_record_what_is_found_is_unknown_not_ours() -> None:
    found = await read(probe(baseline="", users="munge"))
    assert found.left[0].ok is None
    assert not found.clean
    assert (await read(probe(baseline=""))).clean


async def test_a_check_that_failed_or_is_missing_is_unknown() -> None:
    text = probe().replace("==gpuaas-check== ports 0", "==gpuaas-check== ports 2")
    assert [(c.check, c.ok) for c in (await read(text)).left] == [("ports", None)]
    cut = probe().split("==gpuaas-check== users 0")[0]
    found = await read(cut)
    assert not found.clean
    assert "users" in {check.check for check in found.left}


async def test_no_answer_is_never_a_receipt() -> None:
    with pytest.raises(CommandError):
        await receipt.read_receipt(FakeMachine(answers={"": CommandResult(255, "", "gone")}))

    class Away(FakeMachine):
        async def read(self, script: str, *, timeout: float = 30) -> CommandResult:
            raise MachineUnreachableError("away")

    with pytest.raises(MachineUnreachableError):
        await receipt.read_receipt(Away())
    unverified = receipt.unverified_receipt("node-1", "alc_1", "the machine is gone")
    assert not unverified.clean
    assert {check.ok for check in unverified.checks} == {None}


def test_what_a_staying_role_needs_is_not_looked_for() -> None:
    """A worker that leaves the controller's machine leaves the controller's things there."""
    leaves = Going(frozenset({Role.WORKER}), frozenset({Role.CONTROLLER}))
    commands = receipt.checks(leaves)
    assert "slurmd" in commands["processes"]
    assert "slurmctld" not in commands["processes"] + commands["units"] + commands["paths"]
    assert "munge" not in " ".join(commands.values())
    assert "/var/lib/slurm/slurmd" in commands["paths"]
    assert set(CHECKS) > set(commands)
