"""After every refusal something can be done, or it is on the list of those where nothing can."""

import json
from pathlib import Path

import pytest

from gpuaas_contract.problems import Code
from gpuaas_platform.api.next_actions import AFTER, NOTHING, actions_after

OPENAPI = Path(__file__).parents[3] / "docs" / "reference" / "openapi.json"
PATH = "/v1/allocations/alc_01abc/restart"


def anyone(method: str, href: str) -> bool:
    return True


def test_every_code_has_actions_or_a_reason_why_not() -> None:
    assert set(AFTER) | set(NOTHING) == set(Code)
    assert not set(AFTER) & set(NOTHING)
    assert all(NOTHING.values())


@pytest.mark.parametrize("code", sorted(AFTER))
def test_an_action_is_offered_only_to_who_may_call_it(code: Code) -> None:
    assert actions_after(code, "POST", PATH, anyone)
    assert actions_after(code, "POST", PATH, lambda method, href: False) == []


@pytest.mark.parametrize("code", sorted(AFTER))
def test_what_is_called_is_a_route(code: Code) -> None:
    paths = json.loads(OPENAPI.read_text())["paths"]
    for action in actions_after(code, "POST", PATH, anyone):
        assert action.href is not None
        template = action.href.replace("alc_01abc", "{allocation_id}")
        assert str(action.method).lower() in paths[template]


def test_the_object_first_and_its_collection_where_there_is_none() -> None:
    def offered(code: Code, path: str) -> list[tuple[str, str | None]]:
        return [(action.action, action.href) for action in actions_after(code, "POST", path, anyone)]

    assert offered(Code.INVALID_STATE, PATH) == [("show", "/v1/allocations/alc_01abc")]
    assert offered(Code.INVALID_STATE, "/v1/allocations") == [("list", "/v1/allocations")]
    # Whether it exists or is of somebody else: the same.
    assert offered(Code.NOT_FOUND, PATH) == [("list", "/v1/allocations")]


@pytest.mark.parametrize(
    "path", ["/v1/../etc", "/v1/allocations/<b>", "/v1/a\nb", "/v1/" + "x" * 5_000, "//elsewhere", ""]
)
@pytest.mark.parametrize("code", sorted(AFTER))
def test_a_hostile_path_is_not_sent_back(code: Code, path: str) -> None:
    for action in actions_after(code, "GET", path, anyone):
        assert action.href is not None
        assert len(action.href) < 100
        assert not set(action.href) & set("<>\n.")
