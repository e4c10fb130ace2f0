"""Given a task, what LXD is asked for."""

from pathlib import Path
from typing import Any

import pytest

from gpuaas_agent.errors import PermanentError
from gpuaas_agent.host_key import make_host_key
from gpuaas_agent.slice_config import (
    ACCOUNT_LINES,
    DENIED_CALLS,
    acl_body,
    check_spec,
    instance_body,
    instance_name,
    machine_files,
    missing_limits,
    network_body,
    with_line,
)
from gpuaas_contract.agent_link import CreateSlice, HostCertificate

ALLOCATION_ID = "alc_01m7gfpd3h1g6rvw38w29zwk53"


def make_spec(**changes: Any) -> CreateSlice:
    fields: dict[str, Any] = {
        "allocation_id": ALLOCATION_ID,
        "hostname": "web1",
        "shape": {"cpus": 4, "memory_mib": 2048, "disk_gib": 8, "gpus": 2},
        "network": {"owner_id": "prj_1", "bridge": "gpat1", "gateway_cidr": "10.85.1.1/24"},
        "address": "10.85.1.10",
        "principals": {"gpuaas": ["people", "op:42"], "root": ["operators"]},
    }
    return CreateSlice.model_validate(fields | changes)


def test_a_name_is_a_valid_host_name_and_gives_the_allocation_back() -> None:
    name = instance_name(ALLOCATION_ID)
    assert name.replace("-", "_") == ALLOCATION_ID
    assert len(name) <= 63
    assert name.replace("-", "").isalnum()


@pytest.mark.parametrize("bad", ["", "alc_short", "../../etc", "alc_" + "u" * 26, ALLOCATION_ID + "\n"])
def test_what_is_no_allocation_gets_no_name(bad: str) -> None:
    with pytest.raises(PermanentError, match="not the id of an allocation"):
        instance_name(bad)


@pytest.mark.parametrize(
    "changes",
    [
        {"hostname": "web1;reboot"},
        {"hostname": "Web1"},
        {"hostname": "web1\nevil"},
        {"hostname": "web1\n"},
        {"image": "../images/1"},
        {"image": "debian\n"},
        {"principals": {"gpuaas": ["people\n"]}},
        {"principals": {"root\n": ["people"]}},
        {"address": "10.85.2.10"},
        {"address": "10.85.1.1"},
        {"address": "10.85.1.255"},
        {"address": "fd00::1"},
        {"principals": {"../root": ["people"]}},
        {"principals": {"gpuaas": ["people\noperators"]}},
        {"network": {"owner_id": "p", "bridge": "eth0/../x", "gateway_cidr": "10.85.1.1/24"}},
        {"network": {"owner_id": "p", "bridge": "gpat1", "gateway_cidr": "8.8.8.1/24"}},
        {"network": {"owner_id": "p", "bridge": "gpat1", "gateway_cidr": "10.0.0.1/8"}},
        {"network": {"owner_id": "p", "bridge": "gpat1", "gateway_cidr": "everything"}},
    ],
)
def test_a_spec_that_could_do_harm_is_refused(changes: dict[str, Any]) -> None:
    check_spec(make_spec())
    with pytest.raises(PermanentError):
        check_spec(make_spec(**changes))


def test_an_instance_carries_its_tags_limits_and_devices() -> None:
    body = instance_body(
        make_spec(),
        task_id="tsk_1",
        environment="demo",
        image_alias="gpuaas/debian-12",
        pool="pool1",
        artifacts_dir=Path("/state/slices/x/artifacts"),
        volume_devices={},
        gpu_devices=["/dev/stand-in/nvidia0", "/dev/stand-in/nvidia3"],
        host_cpus=2,
        processes_per_cpu=1000,
        leases_dir=Path("/state/slices/x/leases"),
    )
    config = body["config"]
    assert config["user.gpuaas.environment"] == "demo"
    assert config["user.gpuaas.allocation"] == ALLOCATION_ID
    assert config["user.gpuaas.task"] == "tsk_1"
    assert "user.gpuaas.ready" not in config
    assert config["limits.cpu"] == "2", "no more CPUs than the host has"
    assert config["limits.memory"] == "2048MiB"
    assert config["limits.processes"] == "4000", "of the shape, not of the host"
    assert config["security.syscalls.deny"].splitlines() == [
        "keyctl errno 38",
        "add_key errno 38",
        "request_key errno 38",
    ]
    assert body["devices"]["root"] == {"type": "disk", "path": "/", "pool": "pool1", "size": "8GiB"}
    assert body["devices"]["eth0"]["hwaddr"] == "0a:58:0a:55:01:0a"
    assert body["devices"]["eth0"]["ipv4.address"] == "10.85.1.10"
    assert body["devices"]["artifacts"]["readonly"] == "true"
    leases = {"type": "disk", "source": "/state/slices/x/leases", "path": "/opt/gpuaas/leases", "readonly": "true"}
    assert body["devices"]["leases"] == leases, "the machine cannot let anybody in by itself"
    assert body["devices"]["nvidia3"]["source"] == "/dev/stand-in/nvidia3"
    assert body["devices"]["nvidia3"]["path"] == "/dev/nvidia3"
    assert body["profiles"] == [], "nothing comes from a profile that somebody may change"


@pytest.mark.parametrize(
    ("config", "missing"),
    [
        ({"limits.cpu": "4"}, {"limits.processes": "4000", "security.syscalls.deny": DENIED_CALLS}),
        ({"limits.cpu": "04"}, {"limits.processes": "4000", "security.syscalls.deny": DENIED_CALLS}),
        ({}, {"limits.processes": "1000", "security.syscalls.deny": DENIED_CALLS}),
        ({"limits.cpu": "0-1", "limits.processes": "7"}, {"security.syscalls.deny": DENIED_CALLS}),
        ({"limits.processes": "7", "security.syscalls.deny": "mount errno 1"}, {}),
    ],
)
def test_a_slice_of_an_earlier_version_gets_what_it_lacks(config: dict[str, str], missing: dict[str, str]) -> None:
    assert missing_limits(config, 1000) == missing


def test_a_network_has_no_way_out() -> None:
    network = make_spec().network
    config = network_body(network, "demo")["config"]
    assert config["ipv4.nat"] == "false"
    assert config["ipv6.address"] == "none"
    assert config["security.acls"] == "gpat1"
    assert "no-resolv" in config["raw.dnsmasq"]
    acl = acl_body(network, "demo")
    assert acl["egress"][0] == {"action": "reject", "destination": "10.85.1.1/32", "state": "enabled"}
    assert {rule.get("destination", rule.get("source")) for rule in acl["egress"][1:] + acl["ingress"]} == {
        "10.85.1.0/24"
    }


def test_files_hold_one_line_per_principal_and_a_private_host_key() -> None:
    certificate = HostCertificate(certificate="cert", user_authority="authority\n")
    files = {file.path: file for file in machine_files(make_spec(), make_host_key("web1"), certificate)}
    assert files["/etc/ssh/gpuaas_principals/gpuaas"].content == "people\nop:42\n"
    assert files["/etc/ssh/gpuaas_principals/root"].content == "operators\n"
    observer = make_spec(principals={"gpuaas-observer": ["observers"]})
    (lines,) = [f.content for f in machine_files(observer, make_host_key("web1"), certificate) if "observer" in f.path]
    assert lines == "restrict observers\n", "an observer can run commands and nothing else"
    assert files["/etc/ssh/ssh_host_ed25519_key"].mode == 0o600
    assert files["/etc/ssh/gpuaas_user_ca.pub"].content == "authority\n"
    assert files["/etc/hosts"].content.endswith("10.85.1.10 web1.gpuaas.internal web1\n")


@pytest.mark.parametrize("content", ["", "root:x:0:0:root:/root:/bin/bash\n", "root:x:0:0:root:/root:/bin/bash"])
def test_an_account_is_added_once(content: str) -> None:
    line = ACCOUNT_LINES["/etc/passwd"]
    once = with_line(content, line)
    assert once.splitlines() == [*content.splitlines(), line]
    assert with_line(once, line) == once
