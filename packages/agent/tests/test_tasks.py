"""Tasks: delivered many times, run once, reported until heard."""

import asyncio

from gpuaas_agent.errors import PermanentError, RetryLaterError
from gpuaas_agent.locks import KeyedLocks
from gpuaas_agent.slices import Progress
from gpuaas_agent.tasks import Send, TaskRunner
from gpuaas_contract.agent_link import DeleteSlice, DeliverArtifact, TaskMessage, TaskProgress, TaskResult
from gpuaas_contract.ids import ALLOCATION, CORRELATION, TASK, new_id


class Recorder:
    def __init__(self) -> None:
        self.sent: list[TaskProgress | TaskResult] = []
        self.finished = asyncio.Event()

    def send(self, message: TaskProgress | TaskResult) -> None:
        self.sent.append(message)
        if isinstance(message, TaskResult):
            self.finished.set()

    @property
    def results(self) -> list[TaskResult]:
        return [message for message in self.sent if isinstance(message, TaskResult)]


class Work:
    """Tasks that wait until the test lets them go on."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.go = asyncio.Event()
        self.failures: list[Exception] = []

    async def execute(self, message: TaskMessage, progress: Progress) -> str | None:
        self.started.append(message.task_id)
        progress("step", "working")
        await self.go.wait()
        if self.failures:
            raise self.failures.pop(0)
        return "/path"


def make_task(allocation_id: str, *, delete: bool = False) -> TaskMessage:
    spec = (
        DeleteSlice(allocation_id=allocation_id)
        if delete
        else DeliverArtifact(allocation_id=allocation_id, digest="sha256:0", size=1)
    )
    return TaskMessage(task_id=new_id(TASK), correlation_id=new_id(CORRELATION), spec=spec)


def make_runner(work: Work, send: Send) -> TaskRunner:
    return TaskRunner(work.execute, send, KeyedLocks(), retry_seconds=5)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_delivered_again_while_running_runs_once() -> None:
    work, recorder = Work(), Recorder()
    runner = make_runner(work, recorder.send)
    task = make_task(new_id(ALLOCATION))
    runner.accept(task)
    await settle()
    runner.accept(task)
    work.go.set()
    await settle()
    assert work.started == [task.task_id]
    assert recorder.results == [TaskResult(task_id=task.task_id, ok=True, path="/path")]


async def test_a_result_is_sent_again_until_it_is_acknowledged() -> None:
    work, recorder = Work(), Recorder()
    runner = make_runner(work, recorder.send)
    work.go.set()
    task = make_task(new_id(ALLOCATION))
    runner.accept(task)
    await settle()
    runner.accept(task)
    runner.report_again()
    runner.report_again(older_than=60)
    assert len(recorder.results) == 3
    assert work.started == [task.task_id]
    runner.acknowledge(task.task_id)
    runner.report_again()
    assert len(recorder.results) == 3


async def test_one_allocation_in_order_several_at_once() -> None:
    work, recorder = Work(), Recorder()
    runner = make_runner(work, recorder.send)
    one, two = new_id(ALLOCATION), new_id(ALLOCATION)
    tasks = [make_task(one), make_task(one), make_task(two)]
    for task in tasks:
        runner.accept(task)
    await settle()
    assert work.started == [tasks[0].task_id, tasks[2].task_id]
    work.go.set()
    await settle()
    assert {result.task_id for result in recorder.results} == {task.task_id for task in tasks}


async def test_deletion_overtakes_what_runs_on_the_same_machine() -> None:
    work, recorder = Work(), Recorder()
    runner = make_runner(work, recorder.send)
    one, two = new_id(ALLOCATION), new_id(ALLOCATION)
    running, waiting, other = make_task(one), make_task(one), make_task(two)
    for task in (running, waiting, other):
        runner.accept(task)
    await settle()
    deletion = make_task(one, delete=True)
    runner.accept(deletion)
    await settle()
    assert [(result.task_id, result.ok) for result in recorder.results] == [
        (running.task_id, False),
        (waiting.task_id, False),
    ]
    assert work.started[-1] == deletion.task_id
    work.go.set()
    await settle()
    assert {(result.task_id, result.ok) for result in recorder.results[2:]} == {
        (deletion.task_id, True),
        (other.task_id, True),
    }


async def test_two_families_of_errors_and_bugs() -> None:
    work, recorder = Work(), Recorder()
    runner = make_runner(work, recorder.send)
    work.go.set()
    work.failures = [RetryLaterError("LXD restarts")]
    runner.accept(make_task(new_id(ALLOCATION)))
    await asyncio.wait_for(recorder.finished.wait(), 60)
    assert recorder.results[0].ok
    assert len(work.started) == 2
    assert any("LXD restarts; next attempt" in m.message for m in recorder.sent)

    work.failures = [PermanentError("no such image"), ZeroDivisionError("oops")]
    for _ in range(2):
        runner.accept(make_task(new_id(ALLOCATION)))
    await settle()
    assert [result.message for result in recorder.results[1:]] == [
        "no such image",
        "the agent has a bug, its log has the details: ZeroDivisionError('oops')",
    ]


async def test_stopping_reports_nothing_so_that_tasks_are_delivered_again() -> None:
    work, recorder = Work(), Recorder()
    runner = make_runner(work, recorder.send)
    runner.accept(make_task(new_id(ALLOCATION)))
    await settle()
    await runner.aclose()
    assert recorder.results == []
