"""The observer reports nodes that are missing or silent, ghosts, and what could not be seen."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuaas_contract.grants import GrantStatus
from gpuaas_contract.instances import Condition, MemberStatus
from gpuaas_contract.people import Person, PersonEntry
from gpuaas_sdk import NotObservableError, ObserveContext
from gpuaas_sdk.machines.base import CommandResult
from gpuaas_sdk.testing import FakeMachine
from slurm_app.reconcilers.cluster import condition
from slurm_app.reconcilers.observe import observe

from .answers import said
from .test_people import ASSOCIATIONS, person

WHOLE = {"plugstack.conf": said("plugin=yes\nprolog=yes\nepilog=yes\nfiles=x\n"), "SHA256SUMS": said("whole=yes\n")}
"""Of a cluster with all that limits jobs."""
LINE = "NodeName={} Arch=x86_64 Version=22.05.8 State={} CfgTRES=cpu=2 Comment=x \n"


def member(key: str, node: str, status: MemberStatus = MemberStatus.READY) -> SimpleNamespace:
    return SimpleNamespace(
        id=f"mem_{node}", component_key=key, allocation_id="alc_1", status=status, adapter_detail={"node": node}
    )


@dataclass
class Context:
    answer: CommandResult
    live_members: list[Any]
    ready: bool = True
    answers: dict[str, CommandResult] = field(default_factory=dict)
    said_of_instance: list[Condition] = field(default_factory=list)
    requested: list[tuple[str, str | None]] = field(default_factory=list)
    before: Condition | None = None
    said_of_members: dict[str, Condition] = field(default_factory=dict)
    listed: list[Person] = field(default_factory=list)

    async def people(self) -> list[Person]:
        return self.listed

    @property
    def instance(self) -> SimpleNamespace:
        proven = self.before or condition("LimitsEnforced", True, "ProvenByJob", "", 1)
        return SimpleNamespace(generation=1, conditions=[condition("Ready", self.ready, "", "", 1), proven])

    def machine(self, _: str) -> FakeMachine:
        usual = {**WHOLE, "scontrol": self.answer}
        return FakeMachine(answers={**self.answers, **{key: usual[key] for key in usual if key not in self.answers}})

    async def report_instance(self, *, conditions: list[Condition]) -> None:
        self.said_of_instance += conditions

    async def request(self, kind: str, *, member_id: str | None = None) -> None:
        self.requested.append((kind, member_id))

    async def report_member(self, member_id: str, *, conditions: list[Condition]) -> None:
        self.said_of_members[member_id] = conditions[0]


async def look(
    text: str | CommandResult,
    *workers: SimpleNamespace,
    ready: bool = True,
    answers: dict[str, CommandResult] | None = None,
    before: Condition | None = None,
) -> Context:
    answer = said(text) if isinstance(text, str) else text
    context = Context(answer, [member("controller", "head"), *workers], ready, answers or {}, before=before)
    await observe(cast(ObserveContext, context))
    return context


async def test_all_is_well() -> None:
    found = await look(LINE.format("a", "IDLE+DYNAMIC_NORM"), member("worker", "a"))
    assert [(c.type, c.status) for c in found.said_of_instance] == [("Degraded", "false")]
    assert found.requested == []
    assert found.said_of_members["mem_a"].status == "true"


async def test_missing_silent_and_ghost_nodes_are_named() -> None:
    text = LINE.format("b", "IDLE+NOT_RESPONDING") + LINE.format("ghost", "IDLE")
    found = await look(text, member("worker", "a"), member("worker", "b"))
    (degraded,) = found.said_of_instance
    assert degraded.status == "true"
    assert "a is not there" in degraded.message
    assert "b is IDLE+NOT_RESPONDING, does not answer" in degraded.message
    assert "no members: ghost" in degraded.message
    assert {each.status for each in found.said_of_members.values()} == {"false"}


async def test_a_node_is_silent_because_munge_refuses_it() -> None:
    silent = LINE.format("a", "IDLE+NOT_RESPONDING")
    late = "STATUS:          Rewound credential (16)\nENCODE_TIME:     x (4600)\nDECODE_TIME:     y (1000)\n"
    # The longer answer first: one of them is asked with what the other gave.
    answers = {"unmunge": said(late), "munge": said("MUNGE:AwQFAAD+/=:\n")}
    found = await look(silent, member("worker", "a"), answers=answers)
    assert found.said_of_members["mem_a"].reason == "ClockSkew"
    assert "is 3600 s ahead of that on" in found.said_of_members["mem_a"].message
    assert "Rewound credential" in found.said_of_instance[0].message
    answers["unmunge"] = said("unmunge: Error: Invalid credential\n")
    assert (await look(silent, member("worker", "a"), answers=answers)).said_of_members[
        "mem_a"
    ].reason == "MungeRefused"
    answers["unmunge"] = said("STATUS:          Success (0)\n")
    found = await look(silent, member("worker", "a"), answers=answers)
    assert found.said_of_members["mem_a"].reason == "Observed"


async def test_a_worker_in_work_is_no_ghost() -> None:
    joining = member("worker", "None", MemberStatus.CONFIGURING)
    found = await look(LINE.format("a", "IDLE"), joining)
    assert found.said_of_instance[0].status == "false"


async def test_what_could_not_be_seen_is_unknown() -> None:
    found = await look(CommandResult(1, "", "Unable to contact slurm controller"), member("worker", "a"))
    (degraded,) = found.said_of_instance
    assert degraded.status == "unknown"
    assert "Unable to contact" in degraded.message
    assert found.said_of_members == {}


async def test_a_machine_without_an_observer_puts_no_doubt_on_the_cluster() -> None:
    class External(Context):
        def machine(self, _: str) -> FakeMachine:
            raise NotObservableError("alc_1 is not a machine that can be observed")

    context = External(said(""), [member("controller", "head"), member("worker", "a")])
    await observe(cast(ObserveContext, context))
    assert [(c.type, c.status, c.reason) for c in context.said_of_instance] == [("Observed", "false", "NoObserver")]


async def test_before_the_first_job_the_deploy_has_the_word() -> None:
    assert (await look("", member("worker", "a"), ready=False)).said_of_instance == []


async def test_a_cluster_from_before_there_were_limits_says_so() -> None:
    found = await look(LINE.format("a", "IDLE"), member("worker", "a"), answers={"plugstack.conf": said("")})
    limits = found.said_of_instance[1]
    assert (limits.type, limits.status, limits.reason) == ("LimitsEnforced", "false", "DeployedBefore")
    assert "deploy it anew" in limits.message


async def test_a_foreign_plug_in_or_configuration_is_named_and_taken_back_only_to_unknown() -> None:
    idle, worker = LINE.format("a", "IDLE"), member("worker", "a")
    limits = (await look(idle, worker, answers={"SHA256SUMS": said("")})).said_of_instance[1]
    assert (limits.status, limits.reason) == ("false", "PlugInMissing")
    assert "on a:" in limits.message
    (again,) = (await look(idle, worker, before=limits)).said_of_instance[1:]
    assert (again.status, again.reason) == ("unknown", "NotProven"), "only a job proves it"
    changed = {"plugstack.conf": said("plugin=yes\nfiles=x\n")}
    limits = (await look(idle, worker, answers=changed)).said_of_instance[1]
    assert (limits.status, limits.reason) == ("false", "ConfigurationChanged")
    assert "prolog, epilog" in limits.message


async def test_phantom_jobs_are_named_and_a_recovery_is_asked_for() -> None:
    busy, worker = LINE.format("a", "MIXED+DYNAMIC_NORM"), member("worker", "a")
    row = "7                   1:30                1   a\n"
    gone = {"squeue": said(row), "ps -eo": said("marks=yes\nend=yes\n")}
    found = await look(busy, worker, answers=gone)
    assert found.requested == [("recover", "mem_a")]
    assert "job 7; its recovery was asked for" in found.said_of_instance[0].message
    there = {"squeue": said(row), "ps -eo": said("marks=yes\nmark=7\ndaemon=7\nend=yes\n")}
    assert (await look(busy, worker, answers=there)).requested == []
    # Nothing is ended beside a job that runs, nor where the worker gave no whole answer, nor a job that just starts.
    two = {**gone, "squeue": said(f"{row}8 2:00 1 a\n"), "ps -eo": said("marks=yes\nmark=8\ndaemon=8\nend=yes\n")}
    found = await look(busy, worker, answers=two)
    assert (found.requested, "job 8 runs there" in found.said_of_instance[0].message) == ([], True)
    assert (await look(busy, worker, answers={**gone, "ps -eo": said("marks=yes\n")})).requested == []
    assert (await look(busy, worker, answers={**gone, "squeue": said(row.replace("1:30", "0:03"))})).requested == []


def on_controller(status: GrantStatus) -> PersonEntry:
    return PersonEntry(allocation_id="alc_1", allocation_name="one", log_in=True, status=status, reason="")


@pytest.mark.parametrize(
    ("people", "asks"),
    [
        ([person("u-ann", entry=on_controller(GrantStatus.ACTIVE))], True),  # u-bob may not any more
        ([person(login, entry=on_controller(GrantStatus.ACTIVE)) for login in ("u-ann", "u-bob", "u-dan")], True),
        ([person("u-ann"), person("u-bob", left=True)], True),
        ([], True),
    ],
)
async def test_people_who_differ_are_a_reason_to_ask(people: list[Person], asks: bool) -> None:
    head = member("controller", "head")
    head.adapter_detail["account"] = "lab"
    context = Context(said(LINE.format("a", "IDLE")), [head, member("worker", "a")])
    context.answers = {"scontrol show assoc_mgr": said(ASSOCIATIONS)}
    context.listed = people
    await observe(cast(ObserveContext, context))
    assert context.requested == ([("sync-people", "mem_head")] if asks else [])


async def test_people_who_are_all_mapped_are_none() -> None:
    head = member("controller", "head")
    head.adapter_detail["account"] = "lab"
    context = Context(said(LINE.format("a", "IDLE")), [head, member("worker", "a")])
    context.answers = {"scontrol show assoc_mgr": said(ASSOCIATIONS.replace("MaxSubmitJobs=0", "MaxSubmitJobs="))}
    # One has no user on the machine yet: the platform says when.
    context.listed = [
        person("u-ann", entry=on_controller(GrantStatus.ACTIVE)),
        person("u-bob", entry=on_controller(GrantStatus.ACTIVE)),
        person("u-new", entry=on_controller(GrantStatus.PENDING)),
    ]
    await observe(cast(ObserveContext, context))
    assert context.requested == []
