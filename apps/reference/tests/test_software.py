"""Given facts, expect commands. That the commands work is shown by a deploy on a real machine."""

import pytest
from gpuaas_sdk import CommandResult, MachineUnreachableError, OperationFailed, RetryLater, SecretValue, probe
from gpuaas_sdk.testing import FakeMachine, probed

from reference_app import software
from reference_app.receipt import checks
from reference_app.software import Role


def failed(status: int, text: str = "") -> CommandResult:
    return CommandResult(status, text, "")


async def test_a_machine_with_the_same_names_is_left_alone() -> None:
    machine = FakeMachine(answers={"record": failed(9, "rollcall:x:998")})
    with pytest.raises(OperationFailed, match="not from here") as refused:
        await software.ensure_recorded(machine)
    assert (refused.value.code, refused.value.retryable) == ("machine_not_clean", True)


async def test_the_token_is_in_one_file_of_the_daemon_only() -> None:
    machine = FakeMachine()
    await software.ensure_configured(machine, Role.WORKER, {"name": "node-1"}, SecretValue("sec_1", 1, b"hunter2"))
    await software.ensure_running(machine, Role.WORKER)
    holding = {path for path, (content, _, _) in machine.files.items() if "hunter2" in str(content)}
    assert holding == {"/etc/rollcall/token"}
    assert machine.files["/etc/rollcall/token"][1:] == (0o400, "rollcall")
    assert all("hunter2" not in script for script in machine.steps.values())


async def test_a_machine_that_does_not_answer_is_unknown() -> None:
    machine = FakeMachine(answers={"is-active": MachineUnreachableError("no answer")})
    assert (await software.observe_running(machine, Role.WORKER)).is_unknown
    machine.answers["is-active"] = failed(3, "inactive")
    assert (await software.observe_running(machine, Role.WORKER)).is_no


async def test_a_controller_that_does_not_listen_yet_is_asked_again() -> None:
    with pytest.raises(RetryLater):
        await software.read_roll(FakeMachine(answers={"/health": failed(69)}))


async def test_a_worker_leaves_what_the_controller_beside_it_needs() -> None:
    machine = FakeMachine()
    await software.ensure_removed(machine, [Role.WORKER], [Role.CONTROLLER])
    script = machine.steps["remove"]
    assert Role.WORKER.unit in script
    assert not any(word in script for word in ("userdel", Role.CONTROLLER.unit, "rm -rf", "roll.json"))
    await software.ensure_removed(machine, [Role.CONTROLLER], [])
    assert "userdel rollcall" in machine.steps["remove"]


async def test_what_is_left_and_what_could_not_be_looked_at_is_not_clean() -> None:
    wanted = checks([Role.WORKER], [], 7400)
    machine = FakeMachine(answers={"getent": probed(wanted, users="rollcall")})
    left = {check.check: check.ok for check in (await probe(machine, wanted)).left}
    assert left == {"users": False}
    machine.answers["getent"] = MachineUnreachableError("gone")
    assert {check.ok for check in (await probe(machine, wanted)).checks} == {None}
