"""Which ports people reach by a tunnel, and what they are told of them."""

from typing import Any

import pytest

from gpuaas_contract.instances import InstanceStatus, MemberStatus
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.problems import Code
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.instances.rules.ports import find_port, number_of, port_notes, require_open

from . import platform_test_lives

MANIFEST = Manifest.model_validate(
    {
        "schema": "gpuaas.app/v1",
        "slug": "demo",
        "title": "Demo",
        "version": "1.0.0",
        "runtime": {"name": "demo", "version": "7"},
        "components": [{"key": "head", "title": "Head", "primary": True}, {"key": "tail", "title": "Tail"}],
        "ports": [
            {"name": "web", "component": "head", "number": 80, "number_input": "port", "description": "Pages."},
            {"name": "drum", "component": "head", "number": 53, "protocol": "udp"},
            {"name": "twice", "component": "head", "number": 53},
            {"name": "inner", "component": "head", "number": 90, "clients": ["tail", "head"]},
            {"name": "side", "component": "tail", "number": 81},
        ],
        "operations": [{"kind": "deploy", "title": "Deploy"}, {"kind": "decommission", "title": "End"}],
    }
)


@pytest.mark.parametrize(
    ("wanted", "inputs", "name", "number"),
    [
        ("web", {}, "web", 80),
        ("80", {}, "web", 80),
        ("web", {"port": 8080}, "web", 8080),
        ("8080", {"port": 8080}, "web", 8080),
        # Two protocols may share a number: a tunnel is for the one that it can carry.
        ("53", {}, "twice", 53),
        ("web", {"port": "8080"}, "web", 80),
        ("web", {"port": 70_000}, "web", 80),
        ("web", {"port": 0}, "web", 80),
        ("web", {"port": True}, "web", 80),
        ("web", {"port": None}, "web", 80),
    ],
)
def test_a_port_is_found_by_its_name_or_the_number_that_it_has(
    wanted: str, inputs: dict[str, Any], name: str, number: int
) -> None:
    found = find_port(MANIFEST, "head", inputs, wanted)
    assert (found.name, number_of(found, inputs)) == (name, number)


@pytest.mark.parametrize(
    ("component", "wanted", "inputs", "code", "words"),
    [
        ("head", "nose", {}, Code.FORBIDDEN, "declares no port 'nose' for head, which has web (80/tcp), drum (53/udp)"),
        ("head", "80", {"port": 8080}, Code.FORBIDDEN, "which has web (8080/tcp)"),
        ("head", "side", {}, Code.FORBIDDEN, "declares no port 'side' for head"),
        ("tail", "web", {}, Code.FORBIDDEN, "for tail, which has side (81/tcp)"),
        ("nobody", "web", {}, Code.FORBIDDEN, "for nobody, which has none"),
        ("head", "", {}, Code.FORBIDDEN, "declares no port ''"),
        ("head", "drum", {}, Code.INVALID_REQUEST, "is UDP: a tunnel carries TCP only"),
        ("head", "inner", {}, Code.FORBIDDEN, "is for tail, head of the app, not for people"),
        ("head", "90", {}, Code.FORBIDDEN, "not for people"),
    ],
)
def test_others_are_refused(component: str, wanted: str, inputs: dict[str, Any], code: Code, words: str) -> None:
    with pytest.raises(Refusal) as refused:
        find_port(MANIFEST, component, inputs, wanted)
    assert refused.value.code == code
    assert words in refused.value.detail
    assert "inner" not in refused.value.detail or wanted in {"inner", "90"}, "what is not for people is not offered"


def test_a_member_on_which_nothing_can_listen_is_said_to_be_so() -> None:
    closed = {}
    for status in MemberStatus:
        member = platform_test_lives.member(status=status)
        try:
            require_open(member)
        except Refusal as refusal:
            closed[status] = refusal.detail.removeprefix(f"member {member.id} ")
    assert closed == {
        MemberStatus.PENDING: "is pending: nothing has been installed on it yet",
        MemberStatus.STOPPED: "is stopped: start the instance first",
        MemberStatus.REMOVING: "is being removed",
        MemberStatus.REMOVED: "was removed",
    }


def test_an_instance_that_can_be_used_says_how_its_ports_are_reached() -> None:
    instance = platform_test_lives.instance(name="first", inputs={"port": 8080})
    notes = port_notes(instance, InstanceStatus.RUNNING, MANIFEST)
    assert [(note.title, note.command, note.text) for note in notes] == [
        ("Reach port web (8080) of the head", "gpuaas tunnel first web", "Pages."),
        ("Reach port twice (53) of the head", "gpuaas tunnel first twice", ""),
        ("Reach port side (81) of the tail", "gpuaas tunnel first side", ""),
    ]
    for status in set(InstanceStatus) - {InstanceStatus.RUNNING}:
        usable = status in {InstanceStatus.UPDATING, InstanceStatus.UNKNOWN, InstanceStatus.DEGRADED}
        assert bool(port_notes(instance, status, MANIFEST)) == usable
