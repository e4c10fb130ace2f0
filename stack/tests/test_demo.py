"""The demo's last words."""

from datetime import UTC, datetime
from typing import Any

from gpuaas_contract.nodes import Node
from gpuaas_stack.demo import capacity_words
from gpuaas_stack.packs import Demo


def node(status: str, taken: dict[str, int], capacity: dict[str, int] | None) -> Node:
    now = datetime.now(UTC)
    fixed: dict[str, Any] = {"id": "nod_1", "revision": 1, "created_at": now, "updated_at": now, "name": "one"}
    inventory = None if capacity is None else {"capacity": capacity, "virtualisation": "lxd"}
    return Node.model_validate({**fixed, "status": status, "allocated": taken, "inventory": inventory})


def test_capacity_is_told_in_one_line_for_all_nodes_together() -> None:
    taken = {"cpus": 2, "memory_mib": 3072, "disk_gib": 12, "gpus": 1}
    capacity = {"cpus": 8, "memory_mib": 23 * 1024, "disk_gib": 100, "gpus": 4}
    nodes = [node("ready", taken, capacity), node("offline", taken, capacity)]
    nodes += [node("retired", taken, capacity), node("enrolling", dict.fromkeys(taken, 0), None)]
    assert capacity_words(nodes) == "4 of 16 CPUs, 6 of 46 GiB of memory, 24 of 200 GiB of disk, 2 of 8 GPUs"


def test_a_demo_says_what_to_do_next_with_its_own_names() -> None:
    demo = Demo(name="first", placement={"head": [1], "tail": [1, 2]}, next={"Grow": "grow {name} {machine3}"})
    assert demo.filled(demo.next["Grow"], ["m-1", "m-2", "m-3"]) == "grow first m-3"
