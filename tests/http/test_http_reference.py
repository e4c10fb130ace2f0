"""docs/reference/http.md says what the code does."""

import json
import re
from pathlib import Path

from gpuaas_contract.base import API_PREFIX
from gpuaas_contract.events import EVENTS
from gpuaas_contract.nouns import Noun
from gpuaas_contract.problems import IDEMPOTENCY_HOURS, Code
from gpuaas_platform.api.context import KEY_LIMIT
from gpuaas_platform.api.middleware import BODY_LIMIT
from gpuaas_platform.core.errors import MOST_ERRORS, Refusal
from gpuaas_platform.core.pages import MAX_LIMIT
from gpuaas_platform.settings import Settings

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGE = " ".join((REFERENCE / "http.md").read_text().split())


def test_every_code_is_in_the_table_with_its_status() -> None:
    rows = re.findall(r"\| `([a-z_]+)` \| (\d+) \| (yes|no) \| \S", PAGE)
    documented = {code: (int(status), retryable == "yes") for code, status, retryable in rows}
    assert documented == {code.value: (Refusal(code, "").status, Refusal(code, "").retryable) for code in Code}


def test_every_event_is_in_the_table_of_its_noun() -> None:
    rows = re.findall(r"\| `([a-z_]+)` \| (`[a-z_]+`(?:, `[a-z_]+`)*) \|", PAGE)
    documented = {noun: re.findall(r"[a-z_]+", events) for noun, events in rows}
    assert documented == {noun.value: [event.value for event in EVENTS[noun]] for noun in Noun}


def test_every_collection_is_a_route() -> None:
    paths = json.loads((REFERENCE / "openapi.json").read_text())["paths"]
    routes = {re.sub(r"/\{\w+\}$", "", path) for path in paths}
    assert [noun for noun in Noun if noun.collection and f"{API_PREFIX}{noun.collection}" not in routes] == []


def test_the_numbers_are_right() -> None:
    limits = Settings.model_fields
    for said in (
        f"**{IDEMPOTENCY_HOURS} hours**",
        f"`Idempotency-Key` of 1 to {KEY_LIMIT} characters",
        f"at most {BODY_LIMIT // 1024**2} MiB",
        f"`limit` (1 to {MAX_LIMIT})",
        f"at most {MOST_ERRORS} |",
        f"{limits['requests_per_second'].default} requests a second",
        f"{limits['logins_per_minute'].default} logins a minute",
    ):
        assert said in PAGE, said
