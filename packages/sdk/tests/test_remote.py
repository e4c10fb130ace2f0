"""The commands that go to machines, and how answers are read: nothing here runs."""

import pytest

from gpuaas_sdk import CommandError, MachineFencedError, ProtocolError
from gpuaas_sdk.machines.remote import Fence, check_file_written, file_command, step_command, step_result, unit_name

from .sdk_test_machines import claim


def test_unit_names_are_valid_whatever_a_step_is_called() -> None:
    assert unit_name("op_01ABC", "Install Packages!") == "gpuaas-op_01abc-install-packages"
    assert unit_name("op_1", "../../etc/$(reboot)") == "gpuaas-op_1-etc-reboot"
    assert unit_name("op_1", "ß") == "gpuaas-op_1-step"
    assert len(unit_name("op_1", "x" * 1000)) < 255


def test_a_members_operation_is_fenced_apart_from_the_instance() -> None:
    assert Fence.of(claim(3, "op_1", "mem_1")).scope == "ins_1.mem_1"
    assert Fence.of(claim(3, "op_1")).scope == "ins_1"


def test_content_never_appears_in_a_command() -> None:
    fence = Fence.of(claim(3, "op_1"))
    assert "hunter2" not in step_command(fence, "s", b"echo hunter2", call="c", timeout=5)


@pytest.mark.parametrize("path", ["relative", "/etc/", ""])
def test_a_path_must_be_the_absolute_one_of_a_file(path: str) -> None:
    with pytest.raises(ValueError, match="absolute path"):
        file_command(Fence.of(claim(3, "op_1")), path, 0, mode=0o600, owner="root", group="root")


def test_answers() -> None:
    result = step_result("try", 0, b"gpuaas-step 3 4\nout\nerr\n", b"")
    assert (result.exit_status, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert step_result("try", 0, b"gpuaas-step terminated 0\n", b"").exit_status == 124
    with pytest.raises(MachineFencedError, match="newer fencing token 9"):
        step_result("try", 0, b"gpuaas-fenced 9\n", b"")
    with pytest.raises(CommandError, match="exit status 75"):
        step_result("try", 75, b"", b"received less")
    with pytest.raises(ProtocolError):
        step_result("try", 0, b"Welcome to this machine!\n", b"")


@pytest.mark.parametrize(
    "said",
    [b"", b"\xff\xfe\x00", b"gpuaas-step\n", b"gpuaas-step 0\n", b"gpuaas-step zero 4\nout\n", b"gpuaas-step 0 x\n"],
)
def test_a_garbled_answer_is_no_answer(said: bytes) -> None:
    with pytest.raises(ProtocolError, match="cannot try: the machine answered"):
        step_result("try", 0, said, b"")
    with pytest.raises(ProtocolError, match="cannot try: the machine answered"):
        check_file_written("try", 0, said, b"")


def test_a_refusal_without_a_token_is_a_refusal() -> None:
    with pytest.raises(MachineFencedError):
        step_result("try", 0, b"gpuaas-fenced\n", b"")
