"""Enrolment: once, and explained when it cannot be."""

import asyncio
import stat
from pathlib import Path

import pytest
from structlog.contextvars import bound_contextvars

from gpuaas_agent.api import PlatformApi
from gpuaas_agent.errors import PermanentError
from gpuaas_agent.identity import KEY_FILE, NODE_FILE, ensure_identity
from gpuaas_agent.settings import Settings
from gpuaas_contract.problems import CORRELATION_HEADER

from .agent_test_platform import TOKEN, Platform, bound_socket

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


async def test_waits_for_a_platform_that_is_not_up_yet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    directory = tmp_path / "platform"
    directory.mkdir()
    # Bound and not listening: the port is refused, and nobody else can take it meanwhile.
    at = bound_socket()
    waiting = asyncio.create_task(ensure_identity(make_settings(tmp_path, at.getsockname()[1])))
    async with asyncio.timeout(60):
        while caplog.text.count("cannot enrol yet") < 2 and not waiting.done():  # noqa: ASYNC110 - the log has no event
            await asyncio.sleep(0.01)
    assert not waiting.done()
    async with Platform(directory).listening(at) as platform:
        identity = await asyncio.wait_for(waiting, 60)
        assert identity.node_id == platform.node_id
        platform.check_token(f"Bearer {identity.token()}")


async def test_without_a_token_it_says_so(tmp_path: Path, platform: Platform) -> None:
    settings = make_settings(tmp_path, platform.port)
    (tmp_path / "token").unlink()
    with pytest.raises(PermanentError, match="cannot read the join token"):
        await ensure_identity(settings)


async def test_requests_on_behalf_of_a_task_carry_its_correlation_id(tmp_path: Path, platform: Platform) -> None:
    settings = make_settings(tmp_path, platform.port)
    api = PlatformApi(settings.api_url, await ensure_identity(settings))
    try:
        with bound_contextvars(correlation_id="cor_1"):
            assert api.headers()[CORRELATION_HEADER] == "cor_1"
        assert CORRELATION_HEADER not in api.headers()
    finally:
        await api.aclose()
