"""Refusals, limits, pages and scopes: the small rules that every answer follows."""

import base64
import hashlib

import pytest

from gpuaas_contract.problems import Code
from gpuaas_platform.artifacts.rules.registry_access import MOST_SCOPES, Access, key_id, read_scopes
from gpuaas_platform.core import limits
from gpuaas_platform.core.errors import LONGEST_ID, Refusal, not_found
from gpuaas_platform.core.limits import Limits, RateLimit
from gpuaas_platform.core.pages import current_list, cut_page, decode_cursor
from gpuaas_platform.core.records import Subject


@pytest.mark.parametrize("code", Code)
def test_every_code_has_a_status_and_only_what_passes_by_itself_is_retryable(code: Code) -> None:
    refusal = Refusal(code, "no")
    assert 400 <= refusal.status < 600
    if refusal.status in {429, 503}:
        assert refusal.retryable
    if refusal.status in {400, 401, 403, 404, 405, 410, 412, 413, 422, 500}:
        assert not refusal.retryable


def test_what_is_not_there_is_named_in_part_only() -> None:
    refusal = not_found("project", "x" * 10_000)
    assert (refusal.status, refusal.denied) == (404, False)
    assert len(refusal.detail) < LONGEST_ID + 50
    assert not_found("project", "prj_1").detail == not_found("project", "prj_1", denied=True).detail


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def taken(limit: RateLimit, key: str = "ada", most: int = 100) -> int:
    """How many are let through at once."""
    for count in range(most):
        try:
            limit.take(key)
        except Refusal:
            return count
    return most


def test_a_burst_at_once_then_the_rate() -> None:
    clock = Clock()
    limit = RateLimit(2, 5, clock)
    assert taken(limit) == 5
    assert taken(limit, "bob") == 5, "each has a bucket of its own"
    clock.now += 1
    assert taken(limit) == 2
    clock.now += 1_000
    assert taken(limit) == 5, "no more than the burst is saved up"


@pytest.mark.parametrize("rate", [0.1, 0.5, 3, 100])
def test_who_waits_as_long_as_told_is_let_in(rate: float) -> None:
    clock = Clock()
    limit = RateLimit(rate, 1, clock)
    limit.take("ada")
    with pytest.raises(Refusal) as refused:
        limit.take("ada")
    assert (refused.value.code, refused.value.retryable) == (Code.RATE_LIMITED, True)
    assert refused.value.retry_after is not None
    assert refused.value.retry_after >= 1
    clock.now += refused.value.retry_after
    limit.take("ada")


def test_the_least_recently_seen_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_KEYS", 2)
    limit = RateLimit(0.001, 1, Clock())
    for key in ("ada", "bob"):
        limit.take(key)
    assert taken(limit, "ada") == 0, "seen again, so bob is the oldest"
    limit.take("eve")
    assert (taken(limit, "ada"), taken(limit, "bob")) == (0, 1)


def test_a_limit_of_less_than_one_lets_somebody_in() -> None:
    made = Limits.from_rates(0.1, 0.5)
    assert (taken(made.requests), taken(made.logins)) == (1, 1)
    assert taken(Limits.from_rates(3, 4).logins) == 4


def test_pages() -> None:
    rows = [Subject(f"op_{number}", 1) for number in range(3)]
    assert cut_page(rows, 3) == (rows, None)
    page, cursor = cut_page(rows, 2)
    assert (page, decode_cursor(cursor)) == (rows[:2], "op_1")
    assert decode_cursor(None) == ""


def test_a_cursor_of_another_list_is_refused() -> None:
    token = current_list.set("/v1/operations")
    _, cursor = cut_page([Subject("op_1", 1), Subject("op_2", 1)], 1)
    current_list.reset(token)
    for foreign in (cursor, "", "ä", "x", base64.urlsafe_b64encode(b"\xff" * 20).decode()):
        with pytest.raises(Refusal) as refused:
            decode_cursor(foreign)
        assert refused.value.code == Code.CURSOR_INVALID


@pytest.mark.parametrize(
    ("asked", "granted"),
    [
        (["repository:apps/demo/x:pull"], [Access("apps/demo/x", ("pull",))]),
        (["repository:a:pull,push"], [Access("a", ("pull", "push"))]),
        (["repository:a:pull repository:b:push"], [Access("a", ("pull",)), Access("b", ("push",))]),
        (["repository:a:pull", "repository:a:push,pull"], [Access("a", ("pull", "push"))]),
        (["repository:a:delete,*"], [Access("a", ())]),
        (["registry:catalog:*", "repository:A:pull", "repository:../a:pull", "repository:a:pull:x", ""], []),
        ([f"repository:r{number}:pull" for number in range(50)], [Access(f"r{n}", ("pull",)) for n in range(20)]),
    ],
)
def test_which_repositories_a_token_is_asked_for(asked: list[str], granted: list[Access]) -> None:
    assert read_scopes(asked) == granted
    assert len(granted) <= MOST_SCOPES


def test_a_key_is_named_as_docker_names_it() -> None:
    """Twelve groups of four characters: the first 240 bits of the digest in base32."""
    groups = key_id(b"key").split(":")
    assert [len(group) for group in groups] == [4] * 12
    assert base64.b32decode("".join(groups)) == hashlib.sha256(b"key").digest()[:30]
