"""Enrolment: once, and explained when it cannot be."""

import asyncio
import stat
from pathlib import Path

import pytest
from agent_test_platform import TOKEN, Platform

from gpuaas_agent.errors import PermanentError
from gpuaas_agent.identity import KEY_FILE, NODE_FILE, ensure_identity
from gpuaas_agent.settings import Settings

pytestmark = pytest.mark.filterwarnings("ignore:EdDSA is deprecated")


def make_settings(tmp_path: Path, port: int, token: str = TOKEN) -> Settings:
    token_file = tmp_path / "token"
    token_file.write_text(f"{token}\n")
    return Settings(
        api_url=f"http://127.0.0.1:{port}",
        state_dir=tmp_path / "state",
        environment="agenttest",
        storage_pool="none",
        join_token_file=token_file,
    )


async def test_enrols_once(tmp_path: Path, platform: Platform) -> None:
    settings = make_settings(tmp_path, platform.port)
    first = await ensure_identity(settings)
    key_file = settings.state_dir / KEY_FILE
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    platform.check_token(f"Bearer {first.token()}")
    (tmp_path / "token").unlink()
    assert await ensure_identity(settings) == first
    assert first.token() != first.token(), "each token has an id of its own"


async def test_an_answer_that_got_lost_is_asked_for_with_the_same_key(tmp_path: Path, platform: Platform) -> None:
    settings = make_settings(tmp_path, platform.port)
    first = await ensure_identity(settings)
    (settings.state_dir / NODE_FILE).unlink()
    assert await ensure_identity(settings) == first


async def test_a_used_token_is_explained(tmp_path: Path, platform: Platform) -> None:
    settings = make_settings(tmp_path, platform.port, token="used-up")
    with pytest.raises(PermanentError, match="make a new join token"):
        await ensure_identity(settings)
    key = (settings.state_dir / KEY_FILE).read_bytes()
    again = make_settings(tmp_path, platform.port)
    assert (await ensure_identity(again)).key_pem == key


async def test_waits_for_a_platform_that_is_not_up_yet(tmp_path: Path) -> None:
    directory = tmp_path / "platform"
    directory.mkdir()
    async with Platform(directory).listening() as closed:
        port = closed.port
    waiting = asyncio.create_task(ensure_identity(make_settings(tmp_path, port)))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    waiting.cancel()


async def test_without_a_token_it_says_so(tmp_path: Path, platform: Platform) -> None:
    settings = make_settings(tmp_path, platform.port)
    (tmp_path / "token").unlink()
    with pytest.raises(PermanentError, match="cannot read the join token"):
        await ensure_identity(settings)
