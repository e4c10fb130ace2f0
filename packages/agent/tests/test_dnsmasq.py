"""Name servers of bridges: found by what they are, ended by nothing less."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuaas_agent import dnsmasq

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a process with the words of LXD's dnsmasq for a bridge; it waits until it is ended."""
    started = []

    def one(bridge: str, *, name: str = "dnsmasq", lxd_dir: Path = tmp_path) -> "subprocess.Popen[bytes]":
        leases = f"--dhcp-leasefile={lxd_dir}/networks/{bridge}/dnsmasq.leases"
        words = [name, "-c", "echo started; read line", "--keep-in-foreground", f"--interface={bridge}", leases]
        process = subprocess.Popen(words, executable="/bin/sh", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        return process

    yield one
    for process in started:
        process.kill()
        process.communicate()


def record(lxd_dir: Path, bridge: str, content: str) -> None:
    directory = lxd_dir / "networks" / bridge
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "dnsmasq.pid").write_text(content)


def test_the_recorded_one_runs(tmp_path: Path, start: Start) -> None:
    record(tmp_path, "gpa", f"name: dnsmasq\nargs: [--interface=gpa]\npid: {start('gpa').pid}\nuid: 0\n")
    assert dnsmasq.is_running(tmp_path, "gpa")


@pytest.mark.parametrize("content", ["", "pid: none\n", "name: dnsmasq\n", "pid: 0\n", "pid: -1\n", "pid: 4194399\n"])
def test_a_record_without_a_process_is_none(tmp_path: Path, start: Start, content: str) -> None:
    start("gpa")
    record(tmp_path, "gpa", content)
    assert not dnsmasq.is_running(tmp_path, "gpa")


def test_without_a_record_none_runs(tmp_path: Path) -> None:
    assert not dnsmasq.is_running(tmp_path, "gpa")


def test_another_process_with_the_recorded_number_is_not_it(tmp_path: Path, start: Start) -> None:
    others = [start("gpb"), start("gpa", name="cat"), start("gpa", lxd_dir=tmp_path / "another")]
    for other in others:
        record(tmp_path, "gpa", f"pid: {other.pid}\n")
        assert not dnsmasq.is_running(tmp_path, "gpa")


def test_all_of_a_bridge_are_ended_and_nobody_else(tmp_path: Path, start: Start) -> None:
    lost, recorded = start("gpa"), start("gpa")
    record(tmp_path, "gpa", f"pid: {recorded.pid}\n")
    others = [start("gpb"), start("gpaa"), start("gpa", name="cat"), start("gpa", lxd_dir=tmp_path / "another")]
    assert dnsmasq.end_all(tmp_path, "gpa") == sorted([lost.pid, recorded.pid])
    assert [lost.wait(10), recorded.wait(10)] == [-15, -15]
    assert [other.poll() for other in others] == [None] * 4
    assert dnsmasq.end_all(tmp_path, "gpa") == []
