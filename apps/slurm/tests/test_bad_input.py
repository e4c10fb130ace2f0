"""The platform refuses bad input by the manifest, before the app or a machine hears of it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuaas_contract.json_schemas import find_value_problems
from gpuaas_contract.manifest import Manifest
from slurm_app.slurm.overrides import ALLOWED

MANIFEST = Manifest.model_validate(yaml.safe_load((Path(__file__).parents[1] / "manifest.yaml").read_text()))
BAD_WORDS = ["", "main\n", "main\nSlurmUser=root", "main Nodes=x", "$(reboot)", "a;b", "a`id`", "Ä", "a" * 99]


def problems(value: dict[str, Any], kind: str | None = None) -> list[str]:
    of_workers = [o.input_schema for o in MANIFEST.operations if o.kind == kind and o.component != "controller"]
    (schema,) = of_workers if kind else [MANIFEST.inputs]
    return [problem.pointer for problem in find_value_problems(value, schema)]


@pytest.mark.parametrize("word", BAD_WORDS)
def test_names_and_features_with_newlines_or_shell_characters(word: str) -> None:
    assert problems({"cluster_name": word}) == ["/cluster_name"]
    assert problems({"partition": word}) == ["/partition"]
    for kind in ("add", "recover", "replace"):
        assert problems({"features": ["fast", word]}, kind) == ["/features/1"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("KillWait", "1\nSlurmUser=root"), ("KillWait\nSlurmUser", "1"), ("MailProg", "$(id)"), ("KillWait", "1 2")],
)
def test_overrides_with_newlines_or_shell_characters(name: str, value: str) -> None:
    assert problems({"slurm_conf": {name: value}}) != []


def test_what_can_be_chosen_passes() -> None:
    chosen = dict.fromkeys(ALLOWED, "1") | {"PriorityDecayHalfLife": "7-00:00:00", "SchedulerType": "sched/builtin"}
    assert problems({"slurm_conf": {**chosen, "SchedulerParameters": "bf_continue,bf_window=60"}}) == []
    assert problems({"cluster_name": "demo", "partition": "main", "process_tracking": "auto", "mpi": True}) == []
    assert problems({"features": ["fast", "big.disk"]}, "add") == []


def test_force_takes_a_confirmation() -> None:
    for kind in ("drain", "remove", "replace"):
        assert problems({"force": True}, kind) != []
        assert problems({"force": True, "confirm": "node-1"}, kind) == []
