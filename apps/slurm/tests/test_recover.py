"""recover of the controller, and of any member after the munge key was rotated: one key for all members, or none."""

import hashlib
import os
from pathlib import Path

import pytest

from gpuaas_contract.instances import MemberStatus
from gpuaas_sdk import CommandResult
from gpuaas_sdk.testing import FakeMachine
from slurm_app.errors import NotReadyError, RefusedError
from slurm_app.slurm.munge import KEY, STAGED_KEY

from .answers import said
from .memory_platform import CONTROLLER, WORKER, MemoryPlatform
from .test_phases import DIGEST, machine

DAEMONS = ["start-munge", "start-database", "start-slurmdbd", "make-associations", "start-slurmctld"]


@pytest.fixture
def one() -> FakeMachine:
    return machine()


@pytest.fixture
async def platform(tmp_path: Path, one: FakeMachine) -> MemoryPlatform:
    """Of a cluster that was deployed on one machine."""
    platform = MemoryPlatform(tmp_path, DIGEST)
    for component in (CONTROLLER, WORKER):
        platform.place(component, one)
    await platform.deploy()
    one.answers[f"sha256sum <{KEY}"] = said(f"{hashlib.sha256(platform.keys[0]).hexdigest()}  -\n")
    one.steps.clear()
    return platform


async def test_the_controllers_daemons_are_started_and_no_job_is_touched(
    platform: MemoryPlatform, one: FakeMachine
) -> None:
    member = platform.member_on(one, CONTROLLER)
    detail = member.adapter_detail
    platform.change_member(member.id, status=MemberStatus.FAILED, adapter_detail={**detail, "error": "it was killed"})
    done = await platform.run("recover", platform.member_on(one, CONTROLLER))
    assert [*one.steps] == DAEMONS, "neither slurmd nor a job"
    assert done.result == {"nodes": {"node-1": ["IDLE"]}}
    recovered = platform.found[member.id]
    assert (recovered.status, recovered.adapter_detail) == (MemberStatus.READY, detail)


async def test_a_slurmctld_that_gives_no_answer_is_not_called_recovered(
    platform: MemoryPlatform, one: FakeMachine
) -> None:
    one.answers["show node"] = CommandResult(1, "", "Unable to contact slurm controller")
    with pytest.raises(NotReadyError, match="slurmctld does not answer"):
        await platform.run("recover", platform.member_on(one, CONTROLLER))
    assert platform.member_on(one, CONTROLLER).status == MemberStatus.FAILED


@pytest.mark.parametrize("component", [CONTROLLER, WORKER])
async def test_after_a_rotation_a_member_keeps_the_key_of_the_others(
    platform: MemoryPlatform, one: FakeMachine, component: str
) -> None:
    platform.keys.append(os.urandom(128))
    await platform.run("recover", platform.member_on(one, component))
    assert one.files[STAGED_KEY][0] == platform.keys[0]


@pytest.mark.parametrize("component", [CONTROLLER, WORKER])
async def test_a_key_that_the_platform_has_no_more_is_refused_and_nothing_is_changed(
    platform: MemoryPlatform, one: FakeMachine, component: str
) -> None:
    platform.keys += [os.urandom(128), os.urandom(128)]
    with pytest.raises(RefusedError, match="the key was rotated after the cluster was made") as refused:
        await platform.run("recover", platform.member_on(one, component))
    assert (refused.value.code, refused.value.member_usable) == ("munge_key_rotated", True)
    assert ([*one.steps], platform.member_on(one, component).status) == ([], MemberStatus.READY)


async def test_a_machine_without_a_key_is_not_given_one_of_two(platform: MemoryPlatform, one: FakeMachine) -> None:
    platform.keys.append(os.urandom(128))
    one.answers[f"sha256sum <{KEY}"] = said("")
    with pytest.raises(RefusedError, match="has no munge key"):
        await platform.run("recover", platform.member_on(one, CONTROLLER))


async def test_the_newest_key_is_taken_where_the_cluster_has_it(platform: MemoryPlatform, one: FakeMachine) -> None:
    platform.keys.append(os.urandom(128))
    one.answers[f"sha256sum <{KEY}"] = said(f"{hashlib.sha256(platform.keys[1]).hexdigest()}  -\n")
    await platform.run("recover", platform.member_on(one))
    assert one.files[STAGED_KEY][0] == platform.keys[1]
