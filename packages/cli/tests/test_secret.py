"""`gpuaas secret read`: the password comes from where `gpuaas login` takes it, the value goes to stdout alone."""

import io
import json

import pytest

from gpuaas_cli.main import run

from .cli_test_platform import INSTANCE, StubPlatform

READ = f"POST /v1/app-instances/{INSTANCE['id']}/secrets/read"
ANSWER = {
    "secret_id": "sec_01",
    "instance_id": INSTANCE["id"],
    "name": "token",
    "version": 2,
    "encoding": "text",
    "value": "s3same",
}


@pytest.fixture
def platform(logged_in: StubPlatform) -> StubPlatform:
    logged_in.answer(f"GET /v1/app-instances/{INSTANCE['id']}", INSTANCE)
    logged_in.answer(READ, ANSWER)
    return logged_in


def read(*more: str) -> int:
    return run(["secret", "read", str(INSTANCE["id"]), "token", *more])


def sent(platform: StubPlatform) -> list[dict[str, object]]:
    return [json.loads(request[2]) for request in platform.requests if request[2]]


def test_the_value_alone_goes_to_stdout(
    platform: StubPlatform, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from-stdin\n"))
    assert read("--password-stdin") == 0
    said = capsys.readouterr()
    assert said.out == "s3same\n"
    assert said.err == "version 2 of token, in text\n"
    assert sent(platform) == [{"name": "token", "password": "from-stdin"}]
    # Nothing that could be repeated: the answer to a second one would come without the value.
    assert all("idempotency-key" not in {key.lower() for key in request[1]} for request in platform.requests)
    monkeypatch.setenv("GPUAAS_PASSWORD", "from-environment")
    assert read("--version", "1", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["value"] == "s3same"
    assert sent(platform)[-1] == {"name": "token", "version": 1, "password": "from-environment"}


def test_nobody_is_asked_without_a_terminal(
    platform: StubPlatform, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert read() == 2
    assert "--password-stdin or GPUAAS_PASSWORD" in capsys.readouterr().err
    assert read("--password-stdin") == 2
    assert "the password is empty" in capsys.readouterr().err
    assert sent(platform) == []


@pytest.mark.parametrize("more", [["--version", "0"], ["--version", "two"]])
def test_a_version_that_is_none(
    platform: StubPlatform, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    monkeypatch.setenv("GPUAAS_PASSWORD", "hush")
    assert read(*more) == 2
    said = capsys.readouterr()
    assert "version" in said.err
    assert "hush" not in said.err + said.out
    assert sent(platform) == []


def test_refusals_are_printed(
    platform: StubPlatform, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUAAS_PASSWORD", "hush")
    platform.problem(READ, "forbidden", 403)
    assert read() == 4
    said = capsys.readouterr()
    assert said.out == ""
    assert "hush" not in said.err
