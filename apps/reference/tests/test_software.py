"""Given facts, expect commands. That the commands work is shown by a deploy on a real machine."""

import pytest
from gpuaas_sdk import CommandResult, MachineUnreachableError, OperationFailed, RetryLater, SecretValue
from gpuaas_sdk.testing import FakeMachine, probed

from reference_app import software
from reference_app.receipt import prove_removed
from reference_app.software import RECORD, Role, belongings


def failed(status: int, text: str = "") -> CommandResult:
    return CommandResult(status, text, "")


async def test_a_machine_with_the_same_names_is_left_alone() -> None:
    machine = FakeMachine(answers={"record": failed(9, "user rollcall")})
    with pytest.raises(OperationFailed, match="already, and not from this app") as refused:
        await software.ensure_recorded(machine, Role.WORKER)
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


def test_a_worker_leaves_what_the_controller_beside_it_needs() -> None:
    worker = belongings([Role.WORKER], [Role.CONTROLLER])
    assert worker.units == (Role.WORKER.unit,)
    assert not {*worker.entries} & {*belongings([Role.CONTROLLER]).entries}
    assert {*belongings([Role.CONTROLLER]).entries, *worker.entries} == {*RECORD.names.entries}


async def test_all_that_is_written_is_on_the_record_first() -> None:
    machine = FakeMachine()
    for role in Role:
        await software.ensure_recorded(machine, role)
        await software.ensure_configured(machine, role, {}, SecretValue("sec_1", 1, b"hunter2"))
        await software.ensure_running(machine, role)
        await software.ensure_installed(machine, "sha256:0")
        brought = belongings([role])
        units = {f"/etc/systemd/system/{unit}" for unit in brought.units}
        unknown = [
            path
            for path in machine.files
            if path not in {*brought.files, *units} and not path.startswith(tuple(f"{tree}/" for tree in brought.trees))
        ]
        assert unknown == []
        machine.files.clear()


async def test_what_is_left_and_what_could_not_be_looked_at_is_not_clean() -> None:
    seen = ["recorded", "units", "users", "groups", "paths", "accounts", "processes", "files", "kept"]
    found = probed(seen, recorded="sha256:0, 9 names", users="rollcall")
    machine = FakeMachine(answers={"left user": found})
    left = {check.check: check.ok for check in (await prove_removed(machine, [Role.WORKER], [], 7400)).left}
    assert left == {"users": False}
    assert "forget-record" not in machine.steps
    machine.answers["left user"] = MachineUnreachableError("gone")
    assert {check.ok for check in (await prove_removed(machine, [Role.WORKER], [], 7400)).checks} == {None}
