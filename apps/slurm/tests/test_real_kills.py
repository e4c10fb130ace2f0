"""Installs and removals that are killed anywhere, with every process of theirs, are taken up again.

Each kill starts from a snapshot. `make test` kills three times, at moments that a seed chooses; GPUAAS_SOAK=1 kills at
every one of them, GPUAAS_KILLS=… so many times.
"""

import os
import random
from collections.abc import Awaitable, Callable

import pytest

from gpuaas_sdk import CommandError, OperationFailed

from .slices import BARE
from .victim import INSTALLED, SEED, SOAK, WITH_MPI, Victim

KILLS = os.environ.get("GPUAAS_KILLS")
pytestmark = [
    pytest.mark.machines,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(24 * 3600 if SOAK or KILLS else 900),
]
GoOn = Callable[[Victim, str], Awaitable[None]]


async def install_again(victim: Victim, moment: str) -> None:
    """The next install ends what the killed one began."""
    await victim.go_back_to(BARE)
    await victim.kill_install(moment)
    await victim.install()
    await victim.remove()


async def deploy_again(victim: Victim, moment: str) -> None:
    """A whole deploy goes on from there, also beside a package of somebody else's that is broken."""
    await victim.go_back_to(BARE)
    await victim.break_somebody_elses_package()
    await victim.kill_install(moment)
    await victim.deploy()
    await victim.remove()


async def remove_instead(victim: Victim, moment: str) -> None:
    """The cluster is given up with an install that was killed."""
    await victim.go_back_to(BARE)
    await victim.kill_install(moment)
    await victim.remove_beside_files_of_people()


async def remove_again(victim: Victim, moment: str) -> None:
    """The next removal ends what the killed one began."""
    await victim.go_back_to(INSTALLED)
    await victim.kill_removal(moment)
    await victim.remove()


async def try_all(victim: Victim, go_on: GoOn, moments: list[str], count: int) -> None:
    """At so many of the moments; each failure is told, and does not keep the next kill from being tried."""
    failures = []
    for number, moment in enumerate(random.Random(f"{SEED} {go_on.__name__}").sample(moments, count), 1):
        print(
            f"\nGPUAAS_SEED={SEED}, mpi={WITH_MPI}: {go_on.__name__}, {number} of {count}: killed at {moment}",
            flush=True,
        )
        try:
            await go_on(victim, moment)
        except (AssertionError, CommandError, OperationFailed) as error:
            failures.append(f"killed at {moment}: {error}")
            print(failures[-1], flush=True)
    assert not failures, f"GPUAAS_SEED={SEED}\n" + "\n".join(failures)


def how_many(moments: list[str]) -> int:
    return len(moments) if SOAK else int(KILLS or 1)


async def test_an_interrupted_install_is_taken_up_again(victim: Victim) -> None:
    """Once with all that a deploy does: what differs from moment to moment is the install."""
    moments = await victim.moments_of("install")
    await try_all(victim, deploy_again, moments, 1)
    if (count := how_many(moments)) > 1:
        await try_all(victim, install_again, moments, count)


async def test_decommission_in_the_middle_of_an_install(victim: Victim) -> None:
    moments = await victim.moments_of("install")
    await try_all(victim, remove_instead, moments, how_many(moments))


async def test_an_interrupted_removal_is_taken_up_again(victim: Victim) -> None:
    moments = await victim.moments_of("removal")
    await try_all(victim, remove_again, moments, how_many(moments))


async def test_a_package_of_somebody_elses_that_broke_meanwhile_holds_nothing_up(victim: Victim) -> None:
    await victim.go_back_to(BARE)
    await victim.bring_somebody_elses_package()
    await victim.install()
    await victim.break_somebody_elses_package()
    await victim.remove()
