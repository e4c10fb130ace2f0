"""Workers that check others' schemas: they end when they take too long or too much, and others take their places."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.support.hostile_schemas import check_workers, slow_schema

from gpuaas_contract.json_schemas import find_value_problems
from gpuaas_contract.problems import Code
from gpuaas_platform.core.checks import Check, CheckPool, Verdict
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.settings import Settings

PLAIN = {"type": "object", "properties": {"a": {"type": "integer"}}}


def slow_check(owner: str, number: int = 0) -> Check:
    return Check(owner, {"a": number}, slow_schema(), "/inputs")


def quick_check(owner: str, value: Any = 1) -> Check:
    return Check(owner, {"a": value}, PLAIN, "/inputs")


def children() -> set[int]:
    return check_workers(os.getpid())


@asynccontextmanager
async def pool_of(workers: int, seconds: int = 1, patience: float = 60) -> AsyncIterator[CheckPool]:
    pool = CheckPool(workers, seconds, patience)
    try:
        yield pool
    finally:
        await pool.close()
        assert children() == set(), "the workers end with their pool"


async def verdict_of(pool: CheckPool, check: Check) -> Verdict:
    return (await pool.run([check]))[check.key]


async def test_verdicts_are_those_of_the_contract() -> None:
    async with pool_of(1) as pool:
        assert await verdict_of(pool, quick_check("t")) == Verdict()
        found = await verdict_of(pool, quick_check("t", "one"))
        assert list(found.problems) == find_value_problems({"a": "one"}, PLAIN, "/inputs")
        assert len(children()) == 1, "the same worker answered both"
        manifest = await verdict_of(pool, Check("apps/x", MANIFEST))
        assert [problem.pointer for problem in manifest.problems] == ["/operations/1/input_schema/type"]


async def test_a_worker_stays_however_large_the_process_is_that_started_it() -> None:
    """Linux reports the peak memory of a process for its children, too."""
    ballast = bytearray(os.urandom(1 << 20)) * 256
    async with pool_of(1) as pool:
        await verdict_of(pool, quick_check("t", 1))
        first = children()
        await verdict_of(pool, quick_check("t", 2))
        assert len(ballast) == 256 << 20
        assert children() == first


async def test_what_was_fine_is_remembered_and_what_was_not_is_asked_again() -> None:
    async with pool_of(1) as pool:
        good, bad = quick_check("t"), quick_check("t", "one")
        await pool.run([good, bad])
        assert pool.recall(quick_check("of another")) == Verdict()
        assert pool.recall(bad) is None


async def test_one_that_takes_too_long_is_killed_and_replaced() -> None:
    async with pool_of(1) as pool:
        found = await verdict_of(pool, slow_check("x"))
        assert found.too_slow
        assert [problem.pointer for problem in found.problems] == ["/inputs"]
        assert "1 s" in found.problems[0].detail
        assert found.refusal(Code.INPUTS_INVALID, "", ()).code == Code.SCHEMA_TOO_SLOW
        assert pool.recall(slow_check("of another")) == found, "nobody pays for it twice"
        assert await verdict_of(pool, quick_check("x")) == Verdict()


async def test_another_owner_does_not_wait_for_a_slow_one() -> None:
    """The other's question is answered before the first is done."""
    async with pool_of(2, seconds=60) as pool:
        slow = [asyncio.create_task(verdict_of(pool, slow_check("x", number))) for number in range(3)]
        await asyncio.sleep(0)
        assert await verdict_of(pool, quick_check("victim")) == Verdict()
        assert not any(task.done() for task in slow)
    await asyncio.gather(*slow, return_exceptions=True)


async def test_a_worker_that_is_killed_is_replaced_and_the_check_is_run_again() -> None:
    async with pool_of(1) as pool:
        await verdict_of(pool, quick_check("t"))
        (idle,) = children()
        os.kill(idle, signal.SIGKILL)
        assert await verdict_of(pool, quick_check("t", 2)) == Verdict()
        (busy,) = children()
        os.kill(busy, signal.SIGSTOP)
        asked = asyncio.create_task(verdict_of(pool, quick_check("t", 3)))
        await asyncio.sleep(0)
        os.kill(busy, signal.SIGKILL)
        assert await asked == Verdict()


async def test_a_worker_that_is_not_let_run_is_given_up_in_the_end() -> None:
    """It is nobody's fault, so it may be asked again."""
    async with pool_of(1, patience=0.001) as pool:
        with pytest.raises(Refusal) as refused:
            await verdict_of(pool, quick_check("t"))
        assert refused.value.code == Code.UNAVAILABLE
        assert refused.value.retryable


async def test_memory_is_bounded() -> None:
    """Errors of branches are kept, each with the text that it is about: a small schema becomes a large answer."""
    schema = slow_schema(14)
    for part in schema["$defs"].values():
        if "allOf" in part:
            part["anyOf"] = part.pop("allOf")
    schema["$defs"]["d14"] = {"not": {}}
    async with pool_of(1, seconds=20) as pool:
        found = await verdict_of(pool, Check("x", {"a": "x" * 60_000}, schema, "/inputs"))
        assert found.too_slow
        assert await verdict_of(pool, quick_check("x")) == Verdict()


async def test_workers_know_nothing_of_ours() -> None:
    """Neither the database's address nor the vault's is in their environment, nor is a file of ours open in them."""
    os.environ["GPUAAS_TEST_SECRET"] = "x"
    try:
        async with pool_of(1) as pool:
            await verdict_of(pool, quick_check("t"))
            (worker,) = children()
            process = Path("/proc") / str(worker)
            assert (process / "environ").read_text() == ""
            assert {int(file.name) for file in (process / "fd").iterdir()} == {0, 1, 2}
    finally:
        del os.environ["GPUAAS_TEST_SECRET"]


async def test_too_many_at_once_are_told_to_come_back() -> None:
    async with pool_of(1) as pool:
        tasks = [asyncio.create_task(verdict_of(pool, quick_check("t", number))) for number in range(100)]
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, Refusal)]
        assert {answer.code for answer in refused} == {Code.RATE_LIMITED}
        assert 0 < len(refused) < 100
        assert await verdict_of(pool, quick_check("t", 1_000)) == Verdict()


async def test_the_same_question_is_asked_once() -> None:
    async with pool_of(1) as pool:
        answers = await asyncio.gather(*(verdict_of(pool, quick_check("t")) for _ in range(200)))
        assert set(map(id, answers)) == {id(answers[0])}


async def test_those_who_wait_when_it_closes_hear_of_it() -> None:
    async with pool_of(1) as pool:
        tasks = [asyncio.create_task(verdict_of(pool, slow_check("x", number))) for number in range(3)]
        await asyncio.sleep(0)
        await pool.close()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert [answer.code for answer in answers if isinstance(answer, Refusal)] == [Code.UNAVAILABLE] * 3


@pytest.mark.parametrize("name", ["schema_workers", "schema_check_seconds"])
@pytest.mark.parametrize("value", ["", "0", "-1", "1.5", "many", "1000000"])
def test_settings_that_make_no_sense_are_named(name: str, value: str) -> None:
    chosen: dict[str, Any] = {"database_url": "x", "vault_addr": "x", "vault_token_file": "x", name: value}
    with pytest.raises(ValidationError, match=name):
        Settings(**chosen)


MANIFEST: dict[str, Any] = {
    "schema": "gpuaas.app/v1",
    "slug": "echo",
    "title": "Echo",
    "version": "1.2.3",
    "runtime": {"name": "echo", "version": "7"},
    "components": [{"key": "head", "title": "Head", "primary": True}],
    "operations": [
        {"kind": "deploy", "title": "Deploy"},
        {"kind": "decommission", "title": "End", "input_schema": {"type": 7}},
    ],
}
