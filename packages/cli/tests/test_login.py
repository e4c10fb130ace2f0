"""Logging in, and the saved context."""

import io
import json
import stat
from pathlib import Path

import pytest

from gpuaas_cli.main import run
from gpuaas_sdk.profile import config

from .cli_test_platform import StubPlatform

TOKEN = {"access_token": "t0ken", "token_type": "Bearer", "expires_in": 3600}


@pytest.fixture(autouse=True)
def _no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from-stdin\n"))


def login(platform: StubPlatform, *more: str) -> int:
    return run(["login", "--api-url", platform.url, "--email", "a@b", *more])


def test_the_token_is_kept_for_the_owner_only(platform: StubPlatform, home: Path) -> None:
    platform.answer("POST /v1/auth/login", TOKEN)
    assert login(platform, "--password-stdin") == 0
    assert json.loads(platform.requests[0][2])["password"] == "from-stdin"
    file = home / "config.yaml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "from-stdin" not in file.read_text()
    assert config.load().contexts["default"].token == "t0ken"


def test_the_password_may_come_from_the_environment(platform: StubPlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUAAS_PASSWORD", "from-environment")
    platform.answer("POST /v1/auth/login", TOKEN)
    assert login(platform, "--context", "ci") == 0
    assert json.loads(platform.requests[0][2])["password"] == "from-environment"
    assert config.load().current == "ci"


def test_nobody_is_asked_without_a_terminal(platform: StubPlatform, capsys: pytest.CaptureFixture[str]) -> None:
    assert login(platform) == 2
    assert "--password-stdin" in capsys.readouterr().err
    assert platform.requests == []


def test_a_wrong_password_is_denied(platform: StubPlatform, capsys: pytest.CaptureFixture[str]) -> None:
    platform.problem("POST /v1/auth/login", "invalid_credentials", 401)
    assert login(platform, "--password-stdin") == 4
    assert len(platform.requests) == 1
    assert not config.path().exists()


def test_a_remembered_token_goes_to_no_other_address(
    platform: StubPlatform, capsys: pytest.CaptureFixture[str]
) -> None:
    config.save(config.Config().with_context("default", config.Context(api_url="http://other.test", token="secret")))
    assert run(["allocation", "list", "--api-url", platform.url]) == 4
    assert platform.requests == []
    assert "not logged in" in capsys.readouterr().err


def test_flag_wins_over_environment_wins_over_file(platform: StubPlatform, monkeypatch: pytest.MonkeyPatch) -> None:
    config.save(config.Config().with_context("default", config.Context(api_url="http://127.0.0.1:1", token="file")))
    monkeypatch.setenv("GPUAAS_TOKEN", "environment")
    monkeypatch.setenv("GPUAAS_API_URL", "http://127.0.0.1:1")
    platform.answer("GET /v1/tenants", {"items": []})
    assert run(["tenant", "list", "--api-url", platform.url]) == 0
    assert platform.requests[0][1]["authorization"] == "Bearer environment"


def test_contexts_are_listed_without_their_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    config.save(config.Config().with_context("one", config.Context(api_url="http://one.test", token="secret")))
    assert run(["context", "list", "-o", "json"]) == 0
    assert run(["context", "use", "one", "--project", "research"]) == 0
    assert run(["logout"]) == 0
    assert "secret" not in capsys.readouterr().out
    assert config.load().contexts["one"] == config.Context(api_url="http://one.test", project="research")


def test_a_broken_file_is_said(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (home / "config.yaml").write_text("contexts: {a: {surprise: 1}}")
    assert run(["tenant", "list"]) == 2
    assert "cannot read" in capsys.readouterr().err


def test_a_service_account_is_made_here_and_its_key_stays_here(logged_in: StubPlatform, home: Path) -> None:
    account = {"id": "sva_1", "project_id": "prj_1", "name": "bot", "revision": 1}
    times = {"created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z"}
    logged_in.answer("POST /v1/service-accounts", {**account, **times}, 201)
    assert run(["service-account", "create", "bot", "--app", "demo"]) == 0
    file = home / "bot.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    content = json.loads(file.read_text())
    assert content["api_url"] == logged_in.url
    sent = logged_in.requests[-1][2].decode()
    assert "PRIVATE" in content["private_key_pem"]
    assert "PRIVATE" not in sent
    assert "PUBLIC KEY" in sent
    # The file may hold the only copy of a key: it is never overwritten.
    assert run(["service-account", "create", "bot", "--app", "demo"]) == 5
