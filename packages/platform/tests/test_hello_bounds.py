"""Bounds on what an agent may say of its host."""

import pytest
from pydantic import ValidationError

from gpuaas_contract.agent_link import Hello, SliceReport, from_agent_adapter
from gpuaas_contract.nodes import Capacity, Inventory
from gpuaas_platform.nodes.rules import MOST_CPUS, MOST_MACHINES, refuse_hello, refuse_text


def hello(**changes: object) -> Hello:
    capacity = Capacity(cpus=2, memory_mib=1024, disk_gib=10, gpus=0)
    values: dict[str, object] = {"capacity": capacity, "virtualisation": "lxd 5.0.2"}
    own = {key: changes.pop(key) for key in ("slices", "volume_ids", "agent_version") if key in changes}
    inventory = Inventory.model_validate(values | changes)
    return Hello.model_validate({"agent_version": "1", "inventory": inventory} | own)


def capacity(**changes: int) -> Capacity:
    return Capacity(**({"cpus": 1, "memory_mib": 1, "disk_gib": 1, "gpus": 0} | changes))


def test_the_bounds_themselves_are_within() -> None:
    reports = [SliceReport(allocation_id="alc_1", finished=True, running=True)] * MOST_MACHINES
    assert refuse_hello(hello()) == ""
    assert refuse_hello(hello(capacity=capacity(cpus=MOST_CPUS, memory_mib=0), slices=reports)) == ""


@pytest.mark.parametrize(
    ("beyond", "said"),
    [
        (hello(capacity=capacity(cpus=MOST_CPUS + 1)), "cpus is not from 0 to 65536"),
        (hello(capacity=capacity(disk_gib=-1)), "disk_gib is not from 0"),
        (hello(capacity=capacity(gpus=10**5_000)), "gpus is not from 0 to 256"),
        (hello(volume_ids=["vol_1"] * (MOST_MACHINES + 1)), "volume_ids has 10001 entries"),
        (hello(volume_ids=["v" * 256]), "an entry of volume_ids has 256 characters"),
        (hello(caveats=["c"] * 21), "caveats has 21 entries"),
        (hello(caveats=["c" * 1_001]), "an entry of caveats has 1001 characters"),
        (hello(agent_version="1\n2"), "agent_version has characters that cannot be shown: 1\\n2"),
        (hello(address="\u202e1.2.3.4"), "address has characters that cannot be shown"),
    ],
)
def test_what_is_beyond_is_named_with_what_to_do(beyond: Hello, said: str) -> None:
    sentence = refuse_hello(beyond)
    assert said in sentence
    assert sentence.endswith("correct the agent or its settings")
    assert sentence.isprintable()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"type": "hello", "agent_version": "1"}', "inventory: Field required"),
        (
            '{"type": "hello", "agent_version": "1", "inventory": {"capacity": {"cpus": 1.5}}}',
            "inventory.capacity.cpus",
        ),
        ('{"type": "heartbeat", "more": "x"', ""),
        ("no json", ""),
        ('["hello"]', ""),
        ('{"type": "task_result"}', ""),
    ],
)
def test_a_hello_that_cannot_be_read_says_where(text: str, said: str) -> None:
    with pytest.raises(ValidationError) as error:
        from_agent_adapter.validate_json(text)
    sentence = refuse_text(text, error.value)
    assert said in sentence
    assert bool(said) == bool(sentence)
