"""Which machines suit which components, and which mode a placement is of."""

from datetime import UTC, datetime

import pytest

from gpuaas_contract.allocations import AllocationStatus, Shape
from gpuaas_contract.instances import Placement
from gpuaas_contract.manifest import Component, Manifest
from gpuaas_platform.allocations.records import AllocationRecord
from gpuaas_platform.instances.records import MachineUser
from gpuaas_platform.instances.rules.placements import Machines, check_counts, check_placements, check_size, choose_mode

MANIFEST = Manifest.model_validate(
    {
        "schema": "gpuaas.app/v1",
        "slug": "demo",
        "title": "Demo",
        "version": "1.0.0",
        "runtime": {"name": "demo", "version": "7"},
        "components": [
            {"key": "head", "title": "Head", "primary": True, "may_share_machine_with": ["store", "shy"]},
            {"key": "store", "title": "Store", "must_share_machine_with": ["head"], "may_share_machine_with": ["head"]},
            {"key": "node", "title": "Node", "min": 0, "max": 2},
            {"key": "shy", "title": "Shy", "min": 0},
        ],
        "modes": [
            {"key": "one", "title": "One", "max_machines": 1},
            {"key": "many", "title": "Many", "limits": [{"component": "node", "min": 1, "max": 2}]},
        ],
        "operations": [{"kind": "deploy", "title": "Deploy"}, {"kind": "decommission", "title": "End"}],
    }
)
MADE = datetime(2026, 1, 1, tzinfo=UTC)
MIDDLING = Shape(cpus=2, memory_mib=1024)


def machine(name: str, status: AllocationStatus = AllocationStatus.ACTIVE, shape: Shape = MIDDLING) -> AllocationRecord:
    return AllocationRecord(
        id=f"alc_{name}",
        tenant_id="ten_1",
        project_id="prj_1",
        owner_id="prj_1",
        name=name,
        hostname=name,
        shape=shape,
        image=None,
        status=status,
        reason="",
        activity=None,
        wanted_shape=None,
        asked_operation_ids=(),
        node_id="nod_1",
        address="10.0.0.10",
        network_id=None,
        network_policy_id=None,
        project_network_id=None,
        authority_oldest=1,
        authority_newest=1,
        correlation_id="cor_1",
        revision=1,
        created_at=MADE,
        updated_at=MADE,
    )


def place(*words: str) -> list[Placement]:
    """`head@a` places the head on the machine a."""
    pairs = [word.split("@") for word in words]
    return [Placement(component_key=key, allocation_id=where) for key, where in pairs]


def used(where: str, key: str, instance_id: str) -> MachineUser:
    return MachineUser("mem_1", key, where, instance_id, instance_name=instance_id)


def found(placements: list[Placement], machines: Machines) -> list[tuple[str, str | None]]:
    return [(finding.code, finding.pointer) for finding in check_placements(placements, MANIFEST, machines, "/p")]


FREE = Machines({name: machine(name) for name in "abc"}, [])


@pytest.mark.parametrize(
    ("words", "problems"),
    [
        (["head@a", "store@a", "node@b", "node@c"], []),
        (["head@a", "store@b"], [("must_share_machine", "/p/1")]),
        (["node@a", "node@a"], [("may_not_share_machine", "/p/0"), ("may_not_share_machine", "/p/1")]),
        (["head@a", "node@a"], [("may_not_share_machine", "/p/0"), ("may_not_share_machine", "/p/1")]),
        (["head@a", "shy@a"], [("may_not_share_machine", "/p/1")]),
        (["dance@a"], [("component_unknown", "/p/0")]),
        (["head@x"], [("allocation_unknown", "/p/0")]),
        (["dance@x"], [("component_unknown", "/p/0"), ("allocation_unknown", "/p/0")]),
    ],
)
def test_who_shares_a_machine_with_whom(words: list[str], problems: list[tuple[str, str]]) -> None:
    assert found(place(*words), FREE) == problems


@pytest.mark.parametrize("status", AllocationStatus)
def test_only_an_active_machine_is_taken(status: AllocationStatus) -> None:
    problems = found(place("node@a"), Machines({"a": machine("a", status)}, []))
    assert problems == ([] if status == AllocationStatus.ACTIVE else [("allocation_not_active", "/p/0")])


@pytest.mark.parametrize(
    ("live", "instance_id", "wanted", "problems"),
    [
        ([used("a", "head", "ins_2")], None, "node@a", ["allocation_in_use"]),
        ([used("a", "head", "ins_2"), used("a", "store", "ins_2")], "ins_1", "node@a", ["allocation_in_use"]),
        ([used("b", "head", "ins_2")], "ins_1", "node@a", []),
        ([used("b", "node", "ins_1")], "ins_1", "head@a", []),
        ([used("a", "head", "ins_1")], "ins_1", "store@a", []),
        ([used("a", "head", "ins_1")], "ins_1", "node@a", ["may_not_share_machine"]),
        ([used("a", "store", "ins_1")], "ins_1", "head@a", []),
        ([used("a", "shy", "ins_1")], "ins_1", "head@a", ["may_not_share_machine"]),
    ],
    ids=[
        "another's",
        "another's, said once",
        "elsewhere",
        "own elsewhere",
        "own",
        "own, unwilling",
        "own, both willing",
        "own, shy",
    ],
)
def test_machines_that_are_used_already(
    live: list[MachineUser], instance_id: str | None, wanted: str, problems: list[str]
) -> None:
    """Those that live there have a say, too: both have to be willing."""
    machines = Machines({"a": machine("a")}, live, instance_id)
    assert [code for code, _ in found(place(wanted), machines)] == problems


@pytest.mark.parametrize(
    ("shape", "problems"),
    [
        ({"cpus": 4, "memory_mib": 2048, "gpus": 1}, []),
        ({"cpus": 8, "memory_mib": 4096, "gpus": 2}, []),
        ({"cpus": 3, "memory_mib": 2048, "gpus": 1}, ["shape_too_small"]),
        ({"cpus": 4, "memory_mib": 2047, "gpus": 1}, ["shape_too_small"]),
        ({"cpus": 4, "memory_mib": 2048, "gpus": 0}, ["too_few_gpus"]),
        ({"cpus": 1, "memory_mib": 512, "gpus": 0}, ["shape_too_small", "too_few_gpus"]),
    ],
)
def test_the_size(shape: dict[str, int], problems: list[str]) -> None:
    needs = {"cpus": 4, "memory_mib": 2048, "gpus": 1}
    component = Component.model_validate({"key": "big", "title": "Big", "requires_capacity_shape": needs})
    assert [finding.code for finding in check_size(component, machine("a", shape=Shape(**shape)), "/p")] == problems


def sharing(memory_mib: int, gpus: int) -> Manifest:
    """Head and store, which share a machine, each with these needs."""
    document = MANIFEST.model_dump(mode="json", by_alias=True)
    for component in document["components"][:2]:
        component["requires_capacity_shape"] = {"cpus": 2, "memory_mib": memory_mib, "gpus": gpus}
    return Manifest.model_validate(document)


@pytest.mark.parametrize(
    ("memory_mib", "gpus", "problems"),
    [
        (512, 1, []),
        (513, 1, [("shape_too_small", "/p/0")]),
        (512, 2, [("too_few_gpus", "/p/0")]),
        (1025, 1, [("shape_too_small", "/p/0"), ("shape_too_small", "/p/1")]),
    ],
    ids=["both fit", "memory of both", "GPUs of both", "each alone is too large, and that is said"],
)
def test_those_that_share_a_machine_need_room_together(
    memory_mib: int, gpus: int, problems: list[tuple[str, str]]
) -> None:
    """CPUs are taken in turns: two that need two each share a machine of two."""
    machines = Machines({"a": machine("a", shape=Shape(cpus=2, memory_mib=1024, gpus=2))}, [])
    manifest = sharing(memory_mib, gpus)
    findings = list(check_placements(place("head@a", "store@a"), manifest, machines, "/p"))
    assert [(finding.code, finding.pointer) for finding in findings] == problems


def test_a_member_that_joins_counts_those_that_are_there() -> None:
    machines = Machines({"a": machine("a")}, [used("a", "head", "ins_1")], "ins_1")
    (finding,) = check_placements(place("store@a"), sharing(600, 0), machines, "/p")
    assert finding.message == (
        "allocation a is too small for head and store together: it has 1024 MiB, 1200 MiB needed"
    )


@pytest.mark.parametrize(
    ("counts", "wrong"),
    [
        ({"head": 1, "store": 1}, []),
        ({"head": 1, "store": 1, "node": 2, "shy": 1}, []),
        ({"head": 1, "store": 1, "node": 3}, ["node: 3 placed, between 0 and 2 needed"]),
        ({"head": 2, "store": 1}, ["head: 2 placed, between 1 and 1 needed"]),
        ({}, ["head: 0 placed, between 1 and 1 needed", "store: 0 placed, between 1 and 1 needed"]),
    ],
)
def test_how_many(counts: dict[str, int], wrong: list[str]) -> None:
    problems = list(check_counts(counts, MANIFEST, "/p"))
    assert [problem.message for problem in problems] == wrong
    assert {problem.code for problem in problems} <= {"count_out_of_range"}


@pytest.mark.parametrize(
    ("wanted", "words", "mode", "problem"),
    [
        (None, ["head@a"], "one", None),
        (None, ["head@a", "store@a"], "one", None),
        (None, ["head@a", "node@b"], "many", None),
        (None, ["head@a", "node@a"], "one", None),
        (None, ["head@a", "node@b", "node@c", "node@d"], None, "mode_does_not_fit"),
        ("many", ["head@a", "node@a"], "many", None),
        ("many", ["head@a"], "many", "mode_does_not_fit"),
        ("one", ["head@a", "node@b"], "one", "mode_does_not_fit"),
        ("two", ["head@a"], None, "mode_unknown"),
    ],
)
def test_the_mode(wanted: str | None, words: list[str], mode: str | None, problem: str | None) -> None:
    chosen, finding = choose_mode(MANIFEST, wanted, place(*words))
    assert (chosen, finding and finding.code) == (mode, problem)


@pytest.mark.parametrize(
    ("wanted", "words", "mode"),
    [
        (None, ["head@a", "node@a"], "many"),
        (None, ["head@a"], "one"),
        ("one", ["head@a", "node@a"], "one"),
    ],
    ids=["the default", "the default does not fit", "named"],
)
def test_the_manifest_names_its_default_mode(wanted: str | None, words: list[str], mode: str) -> None:
    assert choose_mode(MANIFEST.model_copy(update={"default_mode": "many"}), wanted, place(*words)) == (mode, None)


def test_an_app_without_modes_has_none() -> None:
    plain = MANIFEST.model_copy(update={"modes": []})
    assert choose_mode(plain, None, place("head@a")) == (None, None)
    _, finding = choose_mode(plain, "one", place("head@a"))
    assert finding is not None
    assert finding.message == "demo has no mode 'one'; it has: none"
