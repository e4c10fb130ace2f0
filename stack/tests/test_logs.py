"""Logs stay small: each by itself, all together, and whatever a service does to its own."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from gpuaas_stack import users
from gpuaas_stack.logs import Log, LogLimits, bytes_of_lxd, bytes_of_services, trim, trim_shared
from gpuaas_stack.service import Service
from gpuaas_stack.settings import Settings
from gpuaas_stack.supervision import Supervision

LINE = b"%09d\n"


def write(path: Path, lines: int, first: int = 0) -> Path:
    with path.open("ab") as log:
        log.writelines(LINE % number for number in range(first, first + lines))
    return path


def size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


def test_the_last_lines_are_kept_and_the_writer_goes_on(tmp_path: Path) -> None:
    path = write(tmp_path / "api.log", 99)
    with path.open("ab") as service:
        assert trim([Log.beside(path)], 2000) == [], "it fits: half of the room is for the file before"
        service.write(LINE % 99 + LINE % 100)
        service.flush()
        assert trim([Log.beside(path)], 2000) == [path]
        assert path.read_bytes() == b""
        kept = (tmp_path / "api.log.1").read_bytes()
        assert kept.endswith(LINE % 100)
        assert len(kept) <= 1000
        assert kept.startswith(LINE % 2), "whole lines"
        service.write(b"next\n")
        service.flush()
    assert path.read_bytes() == b"next\n", "no hole of zeros before it"


def test_a_log_that_grew_far_past_its_part_leaves_no_more_than_that(tmp_path: Path) -> None:
    path = write(tmp_path / "api.log", 5000)
    trim([Log.beside(path)], 2000)
    assert size(tmp_path) <= 2000
    write(path, 5000, first=5000)
    trim([Log.beside(path)], 2000)
    assert size(tmp_path) <= 2000
    assert (tmp_path / "api.log.1").read_bytes().endswith(LINE % 9999)


def test_a_line_without_an_end_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "api.log"
    path.write_bytes(b"x" * 5000)
    trim([Log.beside(path)], 2000)
    assert (tmp_path / "api.log.1").read_bytes() == b"x" * 1000


def test_all_logs_together_stay_below_the_total_as_more_of_them_come(tmp_path: Path) -> None:
    for number in range(8):
        write(tmp_path / f"service-{number}.log", 3000)
        for _ in range(2):
            trim([Log.beside(path) for path in sorted(tmp_path.glob("*.log"))], 10_000)
            assert size(tmp_path) <= 10_000
            write(tmp_path / "service-0.log", 3000)
    trim([Log.beside(path) for path in sorted(tmp_path.glob("*.log"))], 10_000)
    assert size(tmp_path) <= 10_000


def test_without_room_for_a_copy_the_log_is_emptied_all_the_same(tmp_path: Path) -> None:
    path = write(tmp_path / "api.log", 1000)
    # A directory in its place stands for a disk that is full: root can write everywhere else.
    (tmp_path / "api.log.1").mkdir()
    assert trim([Log.beside(path)], 2000) == [path]
    assert path.read_bytes() == b""
    assert sorted(found.name for found in tmp_path.iterdir()) == ["api.log", "api.log.1"]


def test_root_is_not_led_astray_by_a_log_in_somebody_else_s_directory(state_dir: Path) -> None:
    own = users.ensure_dir(state_dir / "audit", users.STORES, 0o700)
    logs = users.ensure_dir(state_dir / "logs", mode=0o700)
    precious = write(state_dir / "precious", 500)
    (own / "audit.log").symlink_to(precious)
    limits = LogLimits(1000, {str(own / "audit.log"): users.STORES})
    assert trim(limits.logs(logs), limits.total_bytes) == []
    (own / "audit.log").unlink()
    os.link(precious, own / "audit.log")
    assert trim(limits.logs(logs), limits.total_bytes) == [], "a file of root's"
    assert precious.stat().st_size == 5000
    (own / "audit.log").unlink()
    users.write_private(own / "audit.log", b"x" * 5000, users.STORES)
    assert trim(limits.logs(logs), limits.total_bytes) == [own / "audit.log"]
    assert [path.name for path in logs.iterdir()] == [f"{state_dir.name}-audit.log.1"]


def test_environments_that_share_logs_take_turns(tmp_path: Path) -> None:
    assert trim_shared(tmp_path / "absent", 1000) == []
    for name in ("lxd.log", "lxd.out", "lxcfs.out", "other"):
        write(tmp_path / name, 1000)
    assert len(trim_shared(tmp_path, 6000)) == 3
    assert (tmp_path / "other").stat().st_size == 10_000, "not a log"
    assert size(tmp_path) - 10_000 <= 6000


def test_a_talkative_service_is_cut_while_it_runs(state_dir: Path) -> None:
    total = 100_000
    supervision = Supervision(state_dir, log_limits=LogLimits(total, {}))
    try:
        supervision.ensure_running()
        script = "while :; do echo $i$i$i$i$i$i$i$i$i$i$i$i; i=$((i+1)); done"
        supervision.ensure_service(Service("loud", ["sh", "-c", script], 1))
        supervision.wait_ready("loud")
        before = supervision.logs_dir / "loud.log.1"
        deadline = time.monotonic() + 30
        while not before.exists():
            assert time.monotonic() < deadline, "waited 30 s for the log to be cut"
            time.sleep(0.02)
        assert before.stat().st_size <= total / 2
        # Less room is asked for, without a restart.
        Supervision(state_dir, log_limits=LogLimits(1000, {})).ensure_running()
        deadline = time.monotonic() + 30
        while before.stat().st_size > 1000:
            assert time.monotonic() < deadline, "waited 30 s for the new limit"
            time.sleep(0.02)
    finally:
        supervision.stop()


@pytest.mark.parametrize("value", ["", "much", "49", "-1", "1000001", "1e3", "64.5"])
def test_a_total_that_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("GPUAAS_LOG_MIB", value)
    with pytest.raises(ValidationError, match="log_mib"):
        Settings()


def test_the_total_is_shared_by_services_and_lxd() -> None:
    assert bytes_of_services(100) + bytes_of_lxd(100) == 100 << 20
