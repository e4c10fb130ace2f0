import pytest

from gpuaas_sdk.machines.base import CommandError, CommandResult
from gpuaas_sdk.testing import FakeMachine
from slurm_app.errors import NotReadyError, RefusedError
from slurm_app.slurm import facts
from slurm_app.slurm.roles import Role

from .answers import FACTS, SLURMD_C, facts_of, said


def test_what_slurmd_does_not_say_is_unknown_not_zero() -> None:
    with pytest.raises(NotReadyError):
        facts.parse_shape(facts_of(FACTS + "slurmd: error\n"))


def test_memory_comes_from_the_slice_not_from_slurmd() -> None:
    assert facts.parse_shape(facts_of(FACTS + SLURMD_C)).memory_mib == 2048


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("init=systemd", "init=sh"), "no_systemd"),
        (("os=debian", "os=alpine"), "unsupported_os"),
        (("hostname=node-1", "hostname=other"), "hostname_mismatch"),
        (("memory_mib=2048", "memory_mib=400"), "too_little_memory"),
    ],
)
def test_unfit_machines_are_refused(change: tuple[str, str], code: str) -> None:
    with pytest.raises(RefusedError) as caught:
        facts.refuse_unfit(FakeMachine(), facts_of(FACTS.replace(*change)), Role)
    assert caught.value.code == code


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
