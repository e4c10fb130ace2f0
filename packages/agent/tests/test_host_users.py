"""Removal of a host's users, decided from files alone."""

import os
import subprocess
from pathlib import Path

from gpuaas_agent.host_users import forget_names, remove_abandoned_locks


def ended_process() -> int:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def test_locks_of_killed_programs_go_and_all_others_stay(tmp_path: Path) -> None:
    dead = ended_process()
    abandoned = {f"shadow.{dead}": f"{dead}\0", f"group.{dead}": "", "passwd.lock": f"{dead}\0"}
    others = {
        f"gshadow.{os.getpid()}": f"{os.getpid()}\0",
        "group.lock": f"{os.getpid()}\0",
        "shadow": "root:*:19000::::::\n",
        "shadow-": f"{dead}",
        f"shadow.{dead}.bak": f"{dead}",
        f"mine.{dead}": f"{dead}\0",
        "passwd.1": "root:x:0:0::/root:/bin/bash\n",
    }
    for name, content in {**abandoned, **others}.items():
        (tmp_path / name).write_text(content)
    (tmp_path / f"passwd.{dead}").mkdir()
    remove_abandoned_locks(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*others, f"passwd.{dead}"}


def test_lines_that_a_killed_userdel_left_are_deleted_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "subuid").write_text("ada:100000:65536\ngpuaas:165536:65536\ngpuaas-of-others:1:1\n")
    (tmp_path / "gshadow").write_text("gpuaas:!::\nstaff:*::gpuaas\n")
    (tmp_path / "gshadow").chmod(0o640)
    (tmp_path / "shadow").write_text("ada:!:1:::::\n")
    untouched = (tmp_path / "shadow").stat()
    for _ in range(2):
        forget_names(tmp_path, "gpuaas")
        assert (tmp_path / "subuid").read_text() == "ada:100000:65536\ngpuaas-of-others:1:1\n"
        assert (tmp_path / "gshadow").read_text() == "staff:*::gpuaas\n"
    assert (tmp_path / "gshadow").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "shadow").stat().st_ino == untouched.st_ino
    assert sorted(path.name for path in tmp_path.iterdir()) == [".pwd.lock", "gshadow", "shadow", "subuid"]
