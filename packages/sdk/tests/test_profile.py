"""The file that keeps a login: private, replaced whole, and changed by one program at a time."""

import asyncio
import stat
import time
from pathlib import Path

import pytest

from gpuaas_contract.identity import LoginRequest, Token
from gpuaas_sdk.profile import config, logins
from gpuaas_sdk.profile.config import Config, Context
from gpuaas_sdk.profile.errors import ProfileError

URL = "http://platform.test"


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUAAS_CONFIG", str(tmp_path / "config.yaml"))
    monkeypatch.setenv("GPUAAS_KEYRING", "0")
    return tmp_path / "config.yaml"


class Rotating:
    """A platform that takes each refresh token once, and answers when it is told to."""

    def __init__(self) -> None:
        self.good = "refresh-0"
        self.count = 0
        self.answers = asyncio.Event()
        self.asked = asyncio.Event()

    async def exchange_refresh_token(self, refresh_token: str) -> Token:
        self.asked.set()
        await self.answers.wait()
        assert refresh_token == self.good, "an old refresh token was shown: the login would end"
        self.count += 1
        self.good = f"refresh-{self.count}"
        return Token(access_token=f"access-{self.count}", expires_in=3600, refresh_token=self.good)

    async def login(self, request: LoginRequest) -> Token:
        raise NotImplementedError

    async def exchange_assertion(self, assertion: str) -> Token:
        raise NotImplementedError

    async def exchange_secret(self, service_account_id: str, secret: str) -> Token:
        raise NotImplementedError


def expired() -> Context:
    return Context(api_url=URL, token="access-0", token_expires_at=time.time() - 1, refresh_token="refresh-0")


async def test_clients_of_one_process_renew_one_after_the_other() -> None:
    logins.keep("default", expired())
    platform = Rotating()
    both = [asyncio.create_task(logins.StoredLogin("default").fetch(platform)) for _ in range(3)]
    await platform.asked.wait()
    platform.answers.set()
    tokens = await asyncio.wait_for(asyncio.gather(*both), 30)
    assert {token.access_token for token in tokens} == {"access-1"}
    assert platform.count == 1


async def test_a_cancelled_command_keeps_the_token_that_it_was_given() -> None:
    logins.keep("default", expired())
    platform = Rotating()
    command = asyncio.create_task(logins.StoredLogin("default").fetch(platform))
    await platform.asked.wait()
    command.cancel()
    await asyncio.sleep(0)
    platform.answers.set()
    with pytest.raises(asyncio.CancelledError):
        await command
    assert config.load().contexts["default"].refresh_token == "refresh-1"


def test_a_change_of_another_context_keeps_what_was_renewed_meanwhile() -> None:
    logins.keep("default", expired())
    # Read by a slow log-in before the token of the other context was renewed.
    config.load()
    renewed = Context(api_url=URL, token="access-1", refresh_token="refresh-1")
    logins.keep("default", renewed)
    logins.keep("second", Context(api_url=URL, token="other"))
    logins.forget("second")
    assert config.load().contexts["default"].refresh_token == "refresh-1"
    assert config.load().contexts["second"].token is None


async def test_a_login_that_was_ended_meanwhile_is_said() -> None:
    logins.keep("default", expired())
    logins.forget("default")
    with pytest.raises(ProfileError, match="logged out"):
        await logins.StoredLogin("default").fetch(Rotating())
    logins.forget("never there")


def test_the_file_is_private_and_what_a_killed_program_left_is_in_nobodys_way(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("{}")
    file.chmod(0o644)
    monkeypatch.setattr("os.getpid", lambda: 7)
    file.with_name(f".{file.name}.7").write_text("half")
    config.save(Config().with_context("default", Context(api_url=URL, token="secret")))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert config.load().contexts["default"].token == "secret"
    assert sorted(path.name for path in file.parent.iterdir()) == [f".{file.name}.7", file.name]


def test_a_program_that_holds_the_lock_for_ever_does_not_hold_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "TURN_SECONDS", 0)
    with config.changing(), pytest.raises(ProfileError, match="another program"), config.changing():
        raise AssertionError("two at once")
