"""The app's own look before a deploy or an addition: all of it at once, and what was not seen is said."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuaas_sdk import MachineUnreachableError, PreflightContext
from gpuaas_sdk.testing import FakeMachine
from slurm_app.reconcilers.preflight import check

from .answers import FACTS, said

CLEAN = FACTS + "port=22\npackage=bash\n"


@dataclass
class Context:
    request: dict[str, Any]
    answers: dict[str, str]
    """By allocation; one that is not here does not answer."""
    holds_up: bool = False

    @property
    def preflight(self) -> SimpleNamespace:
        return SimpleNamespace(request=self.request, kind="deploy")

    @property
    def allocation_ids(self) -> list[str]:
        return [*self.answers, "alc_away"]

    def machine(self, allocation_id: str) -> FakeMachine:
        if allocation_id not in self.answers:
            raise MachineUnreachableError("it is off")
        return FakeMachine(allocation_id=allocation_id, answers={"": said(self.answers[allocation_id])})


async def found(request: dict[str, Any], **answers: str) -> list[tuple[str, str]]:
    context = cast(PreflightContext, Context(request, answers))
    return [(finding.code, finding.pointer) for finding in await check(context)]


def placed(*pairs: tuple[str, str], **more: Any) -> dict[str, Any]:
    return {"placement_intent": [{"component_key": key, "allocation_id": where} for key, where in pairs], **more}


async def test_nothing_stands_in_the_way() -> None:
    assert await found(placed(("controller", "alc_1"), ("worker", "alc_1")), alc_1=CLEAN) == []


async def test_findings_point_to_what_was_asked_for() -> None:
    request = placed(
        ("controller", "alc_1"),
        ("worker", "alc_2"),
        ("worker", "alc_away"),
        inputs={"slurm_conf": {"Prolog": "/tmp/x"}},
    )
    late = CLEAN.replace("clock=1700000000", "clock=1700009999").replace("hostname=node-1", "hostname=node-2")
    assert await found(request, alc_1=CLEAN + "port=6817\n", alc_2=late) == [
        ("invalid_override", "/inputs/slurm_conf"),
        ("port_taken", "/placement_intent/0"),
        ("hostname_mismatch", "/placement_intent/1"),
        ("machine_unknown", "/placement_intent/2"),
    ]


async def test_an_addition_and_a_replacement_look_at_the_new_machine_only() -> None:
    dirty = CLEAN + "path=/etc/slurm/mine\n"
    add = {"component_key": "worker", "allocation_ids": ["alc_2"]}
    assert await found(add, alc_1=dirty, alc_2=CLEAN) == []
    assert await found(add, alc_2=dirty) == [("foreign_files", "/allocation_ids/0")]
    replace = {"kind": "replace", "input": {"allocation_id": "alc_2"}}
    assert await found(replace, alc_2=dirty) == [("foreign_files", "/input/allocation_id")]
    assert await found({"kind": "drain", "input": {}}, alc_2=dirty) == []


@pytest.mark.parametrize("first_step", [True, False])
async def test_a_deploy_waits_for_a_machine_that_does_not_answer(first_step: bool) -> None:
    """Somebody who only asks is told; a deploy that has begun waits, as its own phases would."""
    request = placed(("controller", "alc_1"), ("worker", "alc_away"))
    context = cast(PreflightContext, Context(request, {"alc_1": CLEAN}, holds_up=first_step))
    if first_step:
        with pytest.raises(MachineUnreachableError):
            await check(context)
    else:
        assert [finding.pointer for finding in await check(context)] == ["/placement_intent/1"]
