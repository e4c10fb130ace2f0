"""Removal of a host's users, decided from files alone."""

import os
import subprocess
from pathlib import Path

from gpuaas_agent.host_users import remove_abandoned_locks


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
