"""The feed goes on after faults and says when to list again."""

import json

import httpx
import pytest

from gpuaas_sdk import InvalidRequestError, Relist, UnauthenticatedError
from gpuaas_sdk.retry import RetryPolicy
from gpuaas_sdk.testing import ScriptedPlatform, problem


def change(number: int) -> dict[str, object]:
    return {
        "noun": "operation",
        "resource_id": f"op_{number}",
        "event": "created",
        "revision": 1,
        "correlation_id": "cor_1",
        "at": "2026-01-01T00:00:00Z",
    }


def page(cursor: str, *numbers: int) -> httpx.Response:
    return httpx.Response(200, json={"items": [change(n) for n in numbers], "next_cursor": cursor})


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuaas_sdk.changes.RECONNECT", RetryPolicy(first_delay=0.001, longest_delay=0.001))


async def take(platform: ScriptedPlatform, count: int, since: str | None = None) -> list[str]:
    seen: list[str] = []
    async with platform.client() as client:
        async for item in client.changes(since=since):
            seen.append("relist" if isinstance(item, Relist) else item.resource_id)
            if len(seen) == count:
                break
    return seen


async def test_it_starts_with_a_relist_and_goes_on_from_its_cursor() -> None:
    platform = ScriptedPlatform(page("c0"), page("c1", 1, 2), page("c2"), page("c3", 3))
    assert await take(platform, 4) == ["relist", "op_1", "op_2", "op_3"]
    asked = [request.url.params.get("since") for request in platform.requests]
    assert asked == [None, "c0", "c1", "c2"]


async def test_faults_do_not_lose_the_place() -> None:
    lost = [httpx.ConnectError("refused")] * 4 + [problem("unavailable", 503)] * 4
    platform = ScriptedPlatform(page("c1", 1), *lost, page("c2", 2))
    assert await take(platform, 2, since="c0") == ["op_1", "op_2"]
    assert platform.requests[-1].url.params["since"] == "c1"


async def test_a_cursor_that_is_too_old_means_list_again() -> None:
    platform = ScriptedPlatform(problem("cursor_expired", 410), page("c7"), page("c8", 8))
    assert await take(platform, 2, since="c0") == ["relist", "op_8"]
    assert "since" not in platform.requests[1].url.params


def events(*parts: str) -> httpx.Response:
    return httpx.Response(200, headers={"content-type": "text/event-stream"}, content="".join(parts).encode())


def event(id: str, number: int) -> str:
    return f"event: change\nid: {id}\ndata: {json.dumps(change(number))}\n\n"


async def follow(platform: ScriptedPlatform, count: int, since: str | None = "c0") -> list[str]:
    seen: list[str] = []
    async with platform.client() as client:
        async for item in client.changes(since=since, stream=True, nouns=["operation"]):
            seen.append("relist" if isinstance(item, Relist) else item.resource_id)
            if len(seen) == count:
                break
    return seen


async def test_a_stream_that_is_cut_goes_on_behind_the_last_whole_event() -> None:
    platform = ScriptedPlatform(
        events("retry: 1\nid: c0\n\n", event("c1", 1), "event: change\nid: c2\ndata: {"),
        httpx.ConnectError("refused"),
        events(": still here\nid: c5\n\n"),
        events(event("c6", 2)),
    )
    assert await follow(platform, 2) == ["op_1", "op_2"]
    asked = [request.headers.get("last-event-id") for request in platform.requests]
    assert asked == ["c0", "c1", "c1", "c5"]
    assert platform.requests[0].headers["accept"] == "text/event-stream"
    assert platform.requests[0].url.params["noun"] == "operation"


async def test_a_stream_says_why_it_ends() -> None:
    over = problem("unavailable", 503).text
    old = problem("cursor_expired", 410).text
    platform = ScriptedPlatform(
        events(event("c1", 1), f"event: end\ndata: {over}\n\n"),
        events(f"event: end\ndata: {old}\n\n"),
        page("c8"),
        events(event("c9", 9)),
    )
    assert await follow(platform, 3) == ["op_1", "relist", "op_9"]


async def test_a_login_that_ended_is_raised_where_it_cannot_be_renewed() -> None:
    platform = ScriptedPlatform(events(f"event: end\ndata: {problem('unauthenticated', 401).text}\n\n"))
    with pytest.raises(UnauthenticatedError):
        await follow(platform, 1)


async def test_a_given_cursor_that_is_refused_is_raised_and_one_of_ours_is_taken_anew() -> None:
    refused = problem("cursor_invalid", 422)
    with pytest.raises(InvalidRequestError):
        await take(ScriptedPlatform(refused), 1, since="mine")
    platform = ScriptedPlatform(page("c1", 1), refused, page("c7"), page("c8", 8))
    assert await take(platform, 3, since="c0") == ["op_1", "relist", "op_8"]
