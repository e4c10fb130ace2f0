"""Settings and the command line."""

import os
import subprocess
import sys

import pytest

from gpuaas_agent.errors import PermanentError
from gpuaas_agent.settings import HELP, Hosting, read_settings

GOOD = {
    "GPUAAS_API_URL": "http://127.0.0.1:8080/",
    "GPUAAS_AGENT_STATE_DIR": "/var/lib/gpuaas-agent",
    "GPUAAS_ENVIRONMENT": "demo",
    "GPUAAS_STORAGE_POOL": "pool1",
}


def test_defaults() -> None:
    settings = read_settings(GOOD)
    assert settings.api_url == "http://127.0.0.1:8080"
    assert str(settings.lxd_socket) == "/var/lib/lxd/unix.socket"
    assert settings.gpu_devices == "/dev/nvidia[0-9]*"
    assert settings.cpu_overcommit == 1
    assert settings.processes_per_cpu == 2048
    assert settings.join_token_file is None
    assert (settings.network_range, settings.network_check_seconds) == (None, 2)
    assert read_settings(GOOD | {"GPUAAS_NETWORK_RANGE": ""}).network_range is None
    assert str(read_settings(GOOD | {"GPUAAS_NETWORK_RANGE": "10.83.0.0/16"}).network_range) == "10.83.0.0/16"


def test_a_host_that_is_handed_over_needs_no_lxd() -> None:
    given = {name: value for name, value in GOOD.items() if name != "GPUAAS_STORAGE_POOL"}
    settings = read_settings({**given, "GPUAAS_AGENT_HOSTING": "host"})
    assert (settings.hosting, settings.storage_pool) == (Hosting.HOST, "")
    assert read_settings(GOOD).hosting == Hosting.SLICES


@pytest.mark.parametrize(
    "changes",
    [
        {"GPUAAS_AGENT_HOSTING": "both"},
        {"GPUAAS_API_URL": "ftp://x"},
        {"GPUAAS_ENVIRONMENT": "De mo"},
        {"GPUAAS_CPU_OVERCOMMIT": "many"},
        {"GPUAAS_CPU_OVERCOMMIT": "nan"},
        {"GPUAAS_PROCESSES_PER_CPU": ""},
        {"GPUAAS_PROCESSES_PER_CPU": "many"},
        {"GPUAAS_PROCESSES_PER_CPU": "255"},
        {"GPUAAS_PROCESSES_PER_CPU": "65537"},
        {"GPUAAS_PROCESSES_PER_CPU": "300.5"},
        {"GPUAAS_PROCESSES_PER_CPU": "nan"},
        {"GPUAAS_STORAGE_POOL": ""},
        {"GPUAAS_NETWORK_RANGE": "somewhere"},
        {"GPUAAS_NETWORK_RANGE": "10.83.1.0/16"},
        {"GPUAAS_NETWORK_RANGE": "8.8.8.0/24"},
        {"GPUAAS_NETWORK_RANGE": "10.83.0.0/31"},
        {"GPUAAS_NETWORK_RANGE": "fd00::/64"},
        {"GPUAAS_LEASE_PATIENCE_SECONDS": "0"},
        {"GPUAAS_LEASE_PATIENCE_SECONDS": "101"},
        {"GPUAAS_LEASE_PATIENCE_SECONDS": ""},
        {"GPUAAS_LEASE_PATIENCE_SECONDS": "nan"},
        {"GPUAAS_NETWORK_CHECK_SECONDS": "0"},
        {"GPUAAS_NETWORK_CHECK_SECONDS": ""},
        {"GPUAAS_NETWORK_CHECK_SECONDS": "1 ; reboot"},
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, str]) -> None:
    with pytest.raises(PermanentError, match=next(iter(changes))):
        read_settings(GOOD | changes)


def agent(*arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GPUAAS_")}
    return subprocess.run(
        [sys.executable, "-m", "gpuaas_agent.main", *arguments], capture_output=True, text=True, env=environ
    )


def test_help_names_every_setting() -> None:
    shown = agent("run", "--help").stdout
    assert shown.endswith(HELP)


def test_without_settings_it_says_what_is_missing() -> None:
    done = agent("run")
    assert done.returncode == 2
    assert "GPUAAS_API_URL, GPUAAS_AGENT_STATE_DIR" in done.stderr
