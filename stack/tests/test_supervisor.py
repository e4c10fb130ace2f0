from __future__ import annotations

import os
import pwd
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gpuaas_stack import users
from gpuaas_stack.errors import StackError
from gpuaas_stack.processes import ProcessId, alive
from gpuaas_stack.service import Ready, Service
from gpuaas_stack.status import advice
from gpuaas_stack.supervision import Supervision


def sleeper(name: str, order: int = 1, **changes: object) -> Service:
    return replace(Service(name=name, argv=["sleep", "600"], order=order), **changes)  # type: ignore[arg-type]


def run(supervision: Supervision, *services: Service) -> list[ProcessId]:
    supervision.ensure_running()
    for service in services:
        supervision.ensure_service(service)
    states = [supervision.wait_ready(service.name, timeout=20) for service in services]
    return [state.process for state in states if state.process]


def eventually(condition: Callable[[], object], what: str, timeout: float = 15) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout} s for {what}"
        time.sleep(0.02)


def test_it_is_a_daemon_of_its_own(supervision: Supervision) -> None:
    assert supervision.running() is None
    assert supervision.ensure_running() is True
    assert supervision.ensure_running() is False
    daemon = supervision.running()
    assert daemon is not None
    assert os.getsid(daemon.pid) != os.getsid(0)
    assert Path(f"/proc/{daemon.pid}/cwd").readlink() == Path("/")


def test_services_run_as_their_user_with_a_clean_environment(supervision: Supervision) -> None:
    os.environ["LEAKED_SECRET"] = "1"
    try:
        (process,) = run(supervision, sleeper("one", user=users.API, env={"GIVEN": "yes"}))
    finally:
        del os.environ["LEAKED_SECRET"]
    status = Path(f"/proc/{process.pid}/status").read_text()
    assert f"Uid:\t{pwd.getpwnam(users.API).pw_uid}\t" in status
    assert "NoNewPrivs:\t1" in status
    environment = Path(f"/proc/{process.pid}/environ").read_text()
    assert "GIVEN=yes" in environment
    assert "LEAKED_SECRET" not in environment


def test_what_dies_is_started_again(supervision: Supervision) -> None:
    (first,) = run(supervision, sleeper("one"))
    os.kill(first.pid, signal.SIGKILL)
    eventually(lambda: supervision.states()[0].starts == 2, "a second start")
    state = supervision.wait_ready("one")
    assert state.process is not None
    assert state.process != first
    assert state.last_exit == "signal 9"
    assert "ended with signal 9" in supervision.tail("one")


def test_a_service_may_die_just_before_it_is_changed(supervision: Supervision) -> None:
    (first, neighbour) = run(supervision, sleeper("one"), sleeper("two"))
    daemon = supervision.running()
    assert daemon is not None
    # Stopped, it hears of the death and of the wish at the same moment.
    os.kill(daemon.pid, signal.SIGSTOP)
    os.kill(first.pid, signal.SIGKILL)
    supervision.ensure_service(sleeper("one", env={"CHANGED": "yes"}))
    os.kill(daemon.pid, signal.SIGCONT)
    state = supervision.wait_ready("one", timeout=20)
    assert state.process is not None
    assert state.process != first
    assert supervision.running() == daemon
    assert alive(neighbour)


def test_a_service_that_cannot_start_is_reported_with_its_last_words(supervision: Supervision) -> None:
    supervision.ensure_running()
    argv = ["sh", "-c", "echo no such luck; exit 7"]
    supervision.ensure_service(Service("bad", argv, 1, ready=Ready("tcp", "127.0.0.1:1")))
    with pytest.raises(StackError, match="keeps ending") as failure:
        supervision.wait_ready("bad", timeout=30)
    assert "exit status 7" in str(failure.value)
    assert "no such luck" in str(failure.value)


def test_services_are_added_changed_and_removed_at_run_time(supervision: Supervision) -> None:
    (first,) = run(supervision, sleeper("one"))
    (same,) = run(supervision, sleeper("one"))
    assert same == first
    (changed,) = run(supervision, sleeper("one", env={"A": "1"}))
    assert changed != first
    assert not alive(first)
    (second,) = run(supervision, sleeper("two"))
    supervision.remove_service("one")
    assert not alive(changed)
    assert alive(second)


def test_it_stops_everything_in_reverse_order(supervision: Supervision, state_dir: Path) -> None:
    log = state_dir / "order"
    script = f"trap 'echo $NAME >> {log}; exit' TERM; echo up; while :; do sleep 0.02; done"
    services = [
        Service(name, ["sh", "-c", script], order, env={"NAME": name})
        for name, order in (("third", 3), ("first", 1), ("second", 2))
    ]
    processes = run(supervision, *services)
    names = ("first", "second", "third")
    eventually(lambda: all("up" in supervision.tail(name) for name in names), "all to have set their traps")
    assert supervision.stop() == ["third", "second", "first"]
    assert log.read_text().split() == ["third", "second", "first"]
    assert not any(alive(process) for process in processes)
    assert supervision.running() is None


def test_children_of_a_service_end_with_it(supervision: Supervision, state_dir: Path) -> None:
    note = state_dir / "grandchild"
    run(supervision, Service("one", ["sh", "-c", f"sleep 600 & echo $! > {note}; wait"], 1))
    eventually(lambda: note.exists() and note.read_text().strip(), "the grandchild")
    pid = int(note.read_text())
    supervision.stop()
    eventually(lambda: not Path(f"/proc/{pid}").exists() or " Z " in _stat(pid), "the grandchild to end")


def _stat(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return " Z "


def kill_with_its_guard(supervision: Supervision) -> None:
    for process in (supervision.guard(), supervision.running()):
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)


def is_another(supervision: Supervision, than: ProcessId) -> bool:
    return supervision.running() not in (None, than)


def test_a_killed_supervisor_comes_back_with_its_services(supervision: Supervision) -> None:
    before = run(supervision, sleeper("one"), sleeper("two", user=users.API))
    for number in (1, 2):
        daemon = supervision.running()
        assert daemon is not None
        os.kill(daemon.pid, signal.SIGKILL)
        eventually(partial(is_another, supervision, daemon), "another supervisor")
        after = [supervision.wait_ready(name, timeout=20).process for name in ("one", "two")]
        assert not any(alive(process) for process in before)
        before = [process for process in after if process]
        assert all(alive(process) for process in before)
        assert supervision.tail("supervisor").count("ended with signal 9") == number
    supervision.stop()
    assert (supervision.running(), supervision.guard()) == (None, None), "told to end, it stays away"
    assert not any(alive(process) for process in before)


def test_a_supervisor_outlives_its_guard(supervision: Supervision) -> None:
    (process,) = run(supervision, sleeper("one"))
    guard = supervision.guard()
    assert guard is not None
    os.kill(guard.pid, signal.SIGKILL)
    eventually(lambda: supervision.guard() is None, "the guard's lock to be free")
    assert supervision.running() is not None
    assert run(supervision, sleeper("one")) == [process]


def test_a_supervisor_that_cannot_start_is_ended_and_made_anew(supervision: Supervision) -> None:
    run(supervision, sleeper("one"))
    daemon = supervision.running()
    assert daemon is not None
    # Nobody writes half a wish; it stands for any reason to end at once.
    (supervision.services_dir / "one.json").write_text("{")
    os.kill(daemon.pid, signal.SIGKILL)
    log = supervision.logs_dir / "supervisor.log"
    eventually(lambda: log.read_text().count("guard:") >= 2, "two attempts of the guard")
    supervision.stop()
    assert supervision.guard() is None
    run(supervision, sleeper("one"))


@pytest.mark.parametrize(
    ("supervisor", "guard", "services", "words"),
    [
        (True, True, 3, ""),
        (True, False, 3, "`make down` and `make up`"),
        (False, True, 3, "starts it again"),
        (False, False, 3, "`make up` brings everything back"),
        (False, False, 0, ""),
    ],
)
def test_the_status_says_what_brings_a_supervisor_back(
    supervisor: bool, guard: bool, services: int, words: str
) -> None:
    said = advice(supervisor=supervisor, guard=guard, services=services)
    assert words in said
    assert bool(words) == bool(said)


def test_services_end_when_the_supervisor_is_killed(supervision: Supervision) -> None:
    processes = run(supervision, sleeper("one"), sleeper("two", user=users.API))
    kill_with_its_guard(supervision)
    eventually(lambda: not any(alive(process) for process in processes), "the services to end")
    assert supervision.running() is None


def test_a_stubborn_leftover_is_ended_before_the_next_start(supervision: Supervision) -> None:
    script = "trap '' TERM; echo deaf; while :; do sleep 0.05; done"
    (deaf,) = run(supervision, Service("one", ["sh", "-c", script], 1, stop_signal="TERM"))
    eventually(lambda: "deaf" in supervision.tail("one"), "the trap")
    kill_with_its_guard(supervision)
    eventually(lambda: supervision.running() is None, "the lock to be free")
    assert alive(deaf)
    # The patience that ending takes is the point of another test: here the record asks for the hard way.
    state_file = supervision.run_dir / "one.json"
    state_file.write_text(state_file.read_text().replace('"TERM"', '"KILL"'))
    supervision.ensure_stopped()
    assert not alive(deaf)
    assert supervision.states() == []


def test_a_stale_record_of_another_process_harms_nobody(supervision: Supervision, state_dir: Path) -> None:
    (process,) = run(supervision, sleeper("one"))
    record = (supervision.run_dir / "one.json").read_text()
    supervision.stop()
    me = os.getpid()
    (supervision.run_dir / "one.json").write_text(record.replace(f'"pid": {process.pid}', f'"pid": {me}'))
    supervision.ensure_stopped()
    assert not (supervision.run_dir / "one.json").exists()


def test_the_pauses_of_what_keeps_ending_grow_to_the_chosen_limit(state_dir: Path, supervision: Supervision) -> None:
    impatient = Supervision(state_dir, longest_pause=0.6)
    impatient.ensure_running()
    impatient.ensure_service(Service("failing", ["false"], 1))
    eventually(lambda: impatient.tail("failing").count("next start in 0.6 s") >= 2, "two pauses of that length")
    assert impatient.tail("failing").count("next start in 0.5 s") == 1
