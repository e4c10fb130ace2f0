"""Members through the command line, also under the noun's old name."""

from typing import Any

import pytest

from gpuaas_cli.main import RENAMED, run

from .cli_test_platform import AT, INSTANCE, PROJECT, StubPlatform

NOTE = "`gpuaas component` is now `gpuaas member`. The old name goes away in the next release.\n"
MEMBER: dict[str, Any] = {
    "id": "mem_00000000000000000000000001",
    "instance_id": INSTANCE["id"],
    "project_id": PROJECT["id"],
    "component_key": "head",
    "allocation_id": "alc_00000000000000000000000001",
    "status": "ready",
    "correlation_id": "cor_1",
    "revision": 1,
    "created_at": AT,
    "updated_at": AT,
}


@pytest.fixture
def cluster(logged_in: StubPlatform) -> StubPlatform:
    logged_in.answer("GET /v1/app-instances", {"items": [INSTANCE]})
    logged_in.answer(f"GET /v1/app-instances/{INSTANCE['id']}/members", {"items": [MEMBER]})
    logged_in.answer("GET /v1/allocations", {"items": []})
    return logged_in


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["list", "first"], 0),
        (["list", "first", "-o", "json"], 0),
        (["list", "second"], 3),
        (["list"], 2),
        (["dance"], 2),
        (["--help"], 0),
    ],
)
def test_the_old_noun_does_the_same_and_says_its_new_name(
    cluster: StubPlatform, capsys: pytest.CaptureFixture[str], words: list[str], code: int
) -> None:
    assert run(["member", *words]) == code
    new = capsys.readouterr()
    assert run(["component", *words]) == code
    old = capsys.readouterr()
    assert old.out == new.out
    assert old.err == NOTE + new.err


def test_a_list_has_the_member_and_no_note(cluster: StubPlatform, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["member", "list", "first"]) == 0
    said = capsys.readouterr()
    assert MEMBER["id"] in said.out
    assert said.err == ""


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_an_old_noun_is_not_offered(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert run(words) == 0
    offered = capsys.readouterr().out.split()
    assert "member" in offered
    assert not set(RENAMED) & set(offered)
