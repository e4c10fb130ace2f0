from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace

from gpuaas_stack.processes import ProcessId, alive, end, identify


def test_a_process_is_known_by_more_than_its_number() -> None:
    me = identify(os.getpid())
    assert me is not None
    assert alive(me)
    assert not alive(replace(me, started=me.started + 1))
    assert not alive(replace(me, boot="another"))
    assert ProcessId.from_json(me.to_json()) == me


def test_a_zombie_has_ended() -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert identify(child.pid) is None
    child.wait()


def test_end_leaves_a_process_alone_that_only_has_the_same_number() -> None:
    with subprocess.Popen(["sleep", "60"]) as child:
        real = identify(child.pid)
        assert real is not None
        end(replace(real, started=real.started - 1), timeout=0.1)
        assert child.poll() is None
        end(real)
        assert child.wait() == -signal.SIGTERM


def test_end_insists() -> None:
    script = "trap '' TERM; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        process = identify(child.pid)
        assert process is not None
        end(process, timeout=0.2)
        assert child.wait() == -signal.SIGKILL
