import pytest

from gpuaas_sdk.machines.base import CommandError, CommandResult
from slurm_app.errors import NotReadyError, RefusedError
from slurm_app.slurm import facts
from slurm_app.slurm.roles import Role

from .fake_machine import FACTS, SLURMD_C, FakeMachine, said


def test_parse() -> None:
    seen = facts.parse_facts(FACTS + "gpu=/dev/nvidia10\ngpu=/dev/nvidia2\ngpu=/dev/nvidia0-ctl\nnoise\n")
    assert seen.memory_mib == 2048
    assert seen.gpus == ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia10")
    assert seen.own_user_namespace is True
    assert facts.parse_facts(FACTS.replace("hostname=node-1", "hostname=node-1.lxd")).hostname == "node-1"


def test_what_is_missing_is_unknown_not_zero() -> None:
    with pytest.raises(NotReadyError):
        facts.parse_facts(FACTS.replace("memory_kib=2097152\n", ""))
    with pytest.raises(NotReadyError):
        facts.parse_shape("slurmd: error", facts.parse_facts(FACTS))


def test_memory_comes_from_the_slice_not_from_slurmd() -> None:
    assert facts.parse_shape(SLURMD_C, facts.parse_facts(FACTS)).memory_mib == 2048


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("init=systemd", "init=sh"), "no_systemd"),
        (("os=debian", "os=alpine"), "unsupported_os"),
        (("hostname=node-1", "hostname=other"), "hostname_mismatch"),
        (("memory_kib=2097152", "memory_kib=409600"), "too_little_memory"),
    ],
)
def test_unfit_machines_are_refused(change: tuple[str, str], code: str) -> None:
    with pytest.raises(RefusedError) as caught:
        facts.refuse_unfit(FakeMachine(), facts.parse_facts(FACTS.replace(*change)), Role)
    assert caught.value.code == code


async def test_a_failing_read_is_an_error() -> None:
    with pytest.raises(CommandError):
        await facts.read_facts(FakeMachine(answers={"os-release": CommandResult(1, "", "no")}))


async def test_versions_are_what_the_daemons_say() -> None:
    machine = FakeMachine(answers={"-V": said("slurmctld=slurm-wlm 22.05.8\nslurmd=slurm-wlm 22.05.8\n")})
    assert await facts.read_versions(machine) == {"slurmctld": "slurm-wlm 22.05.8", "slurmd": "slurm-wlm 22.05.8"}
    with pytest.raises(CommandError):
        await facts.read_versions(FakeMachine(answers={"-V": CommandResult(1, "", "no")}))


async def test_no_answer_is_not_a_missing_user() -> None:
    assert await facts.read_uid(FakeMachine(answers={"getent": said("10000\nend\n")}), "gpuaas") == 10000
    assert await facts.read_uid(FakeMachine(answers={"getent": said("end\n")}), "gpuaas") is None
    for unclear in (said(""), CommandResult(1, "", "no")):
        with pytest.raises(CommandError):
            await facts.read_uid(FakeMachine(answers={"getent": unclear}), "gpuaas")
