"""Rendering is pure: facts and names in, text out; bad names never reach a file."""

from typing import Any

import pytest

from slurm_app import names
from slurm_app.errors import RefusedError
from slurm_app.slurm import config
from slurm_app.slurm.facts import NodeShape, parse_shape
from slurm_app.slurm.overrides import checked_overrides

from .answers import FACTS, SLURMD_C, facts_of

SHAPE = parse_shape(facts_of(FACTS + SLURMD_C))


def slurm_conf(**changes: str) -> dict[str, str]:
    values: dict[str, Any] = {"cluster_name": "demo", "partition": "main", "host": "node-1", "address": "10.0.0.1"}
    text = config.render_slurm_conf(**values | changes, tracking=config.LINUXPROC)
    return dict(line.split("=", 1) for line in text.splitlines() if not line.startswith("#"))


def test_workers_are_dynamic_nodes_only() -> None:
    conf = slurm_conf()
    assert "NodeName" not in conf
    assert conf["MaxNodeCount"] == "256"
    assert conf["SlurmctldParameters"] == "enable_configless"


def test_accounting_is_enforced_and_counts_gpus() -> None:
    conf = slurm_conf()
    assert conf["AccountingStorageEnforce"] == "associations,limits"
    assert conf["AccountingStorageTRES"] == "gres/gpu"
    assert conf["SlurmctldHost"] == "node-1(10.0.0.1)"
    assert conf["PartitionName"].startswith("main Nodes=ALL Default=YES")


@pytest.mark.parametrize(
    "changes",
    [
        {"cluster_name": "demo\nSlurmUser=root"},
        {"cluster_name": "demo\n"},
        {"partition": "main Nodes=x"},
        {"partition": "$(reboot)"},
        {"host": "node;reboot"},
        {"address": "10.0.0.1) BackupController=evil"},
    ],
)
def test_names_with_newlines_or_shell_characters_are_refused(changes: dict[str, str]) -> None:
    with pytest.raises(RefusedError):
        slurm_conf(**changes)


def test_no_password_in_slurmdbd_conf() -> None:
    text = config.render_slurmdbd_conf()
    assert "StoragePass" not in text
    assert "StorageHost=localhost" in text


def test_gres_names_the_devices_that_were_found() -> None:
    assert config.render_gres_conf(SHAPE.gpus).endswith("\nName=gpu File=/dev/nvidia0,/dev/nvidia1\n")
    assert "Name=" not in config.render_gres_conf(())
    with pytest.raises(RefusedError):
        config.render_gres_conf(("/dev/nvidia0 Count=9",))


def test_slurmd_reports_the_memory_of_the_slice() -> None:
    unit = config.render_slurmd_unit(SHAPE, conf_server="10.0.0.9", features=("fast", "big"))
    # Debian's unit is skipped where there is no slurm.conf, unless the condition is taken away.
    assert "\nConditionPathExists=\n" in unit
    assert "--conf-server 10.0.0.9:6817" in unit
    assert '-Z --conf "CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=2048' in unit
    assert 'Gres=gpu:2 Feature=fast,big"' in unit
    bare = config.render_slurmd_unit(NodeShape(1, 1, 1, 1, 1, 512, ()), conf_server="10.0.0.9")
    assert "Gres" not in bare
    assert "Feature" not in bare


def test_the_weakest_machine_decides_the_process_tracking() -> None:
    slice_ = facts_of(FACTS)
    host = facts_of(FACTS.replace("uid_map=0:100000", "uid_map=0:0"))
    assert config.choose_process_tracking([host, slice_]) is config.LINUXPROC
    assert "LimitsEnforced" in config.LINUXPROC.note
    best = config.choose_process_tracking([host])
    assert best.proctrack == "proctrack/cgroup"
    assert best.cgroup_conf is not None
    assert "CgroupPlugin=cgroup/v1" in best.cgroup_conf
    assert config.choose_process_tracking([]) is config.LINUXPROC


def test_default_cluster_name() -> None:
    assert names.cluster_name_for("my-cluster") == "my_cluster"
    with pytest.raises(RefusedError):
        names.cluster_name_for("9lives")


def test_overrides_replace_or_join_the_settings() -> None:
    text = config.render_slurm_conf(
        cluster_name="demo",
        partition="main",
        host="node-1",
        address="10.0.0.1",
        tracking=config.LINUXPROC,
        overrides={"slurmdtimeout": "120", "MaxArraySize": "5000"},
    )
    assert text.count("SlurmdTimeout=") == 1
    assert "SlurmdTimeout=120\n" in text
    assert "MaxArraySize=5000\n" in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SlurmUser", "root"),
        ("Prolog", "/tmp/x"),
        ("AuthType", "auth/none"),
        ("KillWait", "1\nSlurmUser=root"),
        ("KillWait\nSlurmUser", "root"),
        ("SchedulerParameters", "a b"),
        ("MpiDefault", "$(id)"),
    ],
)
def test_overrides_that_are_not_safe_are_refused_in_plain_words(name: str, value: str) -> None:
    with pytest.raises(RefusedError, match=r"cannot be set|no value for"):
        checked_overrides({name: value})


def test_an_override_is_set_once() -> None:
    with pytest.raises(RefusedError, match="twice"):
        checked_overrides({"KillWait": "1", "killwait": "2"})
