"""The agent over TLS: enrolment, link, streams; and what it says where it does not trust the platform."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuaas_agent.api import PlatformApi
from gpuaas_agent.errors import PermanentError
from gpuaas_agent.identity import ensure_identity
from gpuaas_agent.settings import Settings, read_settings
from gpuaas_contract.ids import ALLOCATION, new_id

from .agent_test_certificate import make_certificate
from .agent_test_platform import TOKEN, Platform
from .test_link import Linked, spec

pytestmark = pytest.mark.filterwarnings("ignore:EdDSA is deprecated")


@asynccontextmanager
async def platform_with(context: ssl.SSLContext, directory: Path) -> AsyncIterator[Platform]:
    directory.mkdir(exist_ok=True)  # noqa: ASYNC240 - local disk
    async with Platform(directory).listening(tls=context) as running:
        yield running


def make_settings(tmp_path: Path, platform: Platform, ca_file: Path | None) -> Settings:
    token_file = tmp_path / "token"
    token_file.write_text(TOKEN)
    return Settings(
        api_url=f"https://127.0.0.1:{platform.port}",
        state_dir=tmp_path / "state",
        environment="agenttest",
        storage_pool="none",
        join_token_file=token_file,
        ca_file=ca_file,
    )


async def test_enrolment_link_and_requests_go_over_tls(tmp_path: Path) -> None:
    certificate = tmp_path / "platform.pem"
    async with platform_with(make_certificate(certificate), tmp_path / "platform") as platform:
        settings = make_settings(tmp_path, platform, certificate)
        api = PlatformApi(settings.api_url, await ensure_identity(settings), settings.ca_file)
        agent = Linked(platform, tmp_path, api)
        running = asyncio.create_task(agent.link.run())
        try:
            await platform.until(lambda: platform.hellos, "hello")
            assert (await platform.run_task(spec())).ok
            assert await api.create_host_certificate(new_id(ALLOCATION), platform.authority.public)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await api.aclose()


async def test_a_new_authority_is_trusted_when_the_link_is_dialled_again(tmp_path: Path) -> None:
    certificate = tmp_path / "platform.pem"
    context = make_certificate(certificate)
    async with platform_with(context, tmp_path / "platform") as platform:
        settings = make_settings(tmp_path, platform, certificate)
        agent = Linked(platform, tmp_path, PlatformApi(settings.api_url, await ensure_identity(settings), certificate))
        running = asyncio.create_task(agent.link.run())
        try:
            await platform.until(lambda: platform.hellos, "hello")
            make_certificate(certificate)
            context.load_cert_chain(certificate)
            await platform.drop_links()
            await platform.until(lambda: len(platform.hellos) == 2, "the second hello")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda path: make_certificate(path, days=-1), "its certificate has expired"),
        (lambda path: make_certificate(path, "10.0.0.1"), "its certificate is for another name"),
        (lambda path: make_certificate(path.with_name("other.pem")), "authority that is not trusted here"),
    ],
)
async def test_a_platform_that_is_not_trusted_gets_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], ssl.SSLContext], expected: str
) -> None:
    certificate = tmp_path / "platform.pem"
    make_certificate(certificate)
    async with platform_with(make(certificate), tmp_path / "platform") as platform:
        settings = make_settings(tmp_path, platform, certificate)
        enrolling = asyncio.create_task(ensure_identity(settings))
        async with asyncio.timeout(30):
            while expected not in caplog.text:
                assert not enrolling.done()
                await asyncio.sleep(0.01)
        enrolling.cancel()
        await asyncio.gather(enrolling, return_exceptions=True)
        assert platform.node_key is None


def test_a_wrong_file_of_authorities_is_named_at_the_start(tmp_path: Path) -> None:
    given = {
        "GPUAAS_API_URL": "https://127.0.0.1:1",
        "GPUAAS_AGENT_STATE_DIR": str(tmp_path),
        "GPUAAS_ENVIRONMENT": "demo",
        "GPUAAS_STORAGE_POOL": "pool",
    }
    assert read_settings({**given, "GPUAAS_CA_FILE": ""}).ca_file is None
    (tmp_path / "empty").touch()
    for wrong in (str(tmp_path / "missing"), str(tmp_path / "empty"), "a\0b"):
        with pytest.raises(PermanentError, match="cannot start: GPUAAS_CA_FILE is wrong"):
            read_settings({**given, "GPUAAS_CA_FILE": wrong})
    make_certificate(tmp_path / "good")
    assert read_settings({**given, "GPUAAS_CA_FILE": str(tmp_path / "good")}).ca_file == tmp_path / "good"
