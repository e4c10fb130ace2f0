"""A platform for every test: PostgreSQL and OpenBao are the worker's, the database and the API are the module's.

A test makes a tenant, a node and people of its own, so that it need not know what others left. One that looks at all
that there is, or that changes what all share, says `@pytest.mark.own_platform` and why: it gets a database and an API
for itself. After a test that failed the module goes on with new ones."""

import os
import secrets
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest

from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack.settings import Settings
from tests.support.openbao import Vault
from tests.support.processes import ApiProcess, cloned_platform
from tests.support.services import admin_credentials, template_servers
from tests.support.shared_platform import SharedPlatform, shared_platform
from tests.support.world import World

# All servers here speak plain HTTP. To read the machine's certificates, as each HTTP client does when it is made, would
# take longer than most requests.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)

LONGEST = (
    "test_fuzz",
    "test_lifecycle_states",
    "test_cli",
    "test_policy",
    "test_feed_load",
    "test_faults",
    "test_secret_faults",
    "test_own_servers",
    "test_artifact_pushes",
    "test_feed",
    "test_registry_space",
)
OWN_PLATFORM = "own_platform"
FAILED = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{OWN_PLATFORM}(why): needs a database and an API of its own")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed
    return report


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The modules that take longest come first, so that no worker is left alone with one of them at the end.

    Not where the order is left to chance."""
    if os.environ.get("GPUAAS_SHUFFLE"):
        return
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.fixture(scope="session")
def servers() -> Iterator[Settings]:
    with template_servers("http") as settings:
        yield settings


@pytest.fixture(scope="module")
def module_platform(servers: Settings) -> Iterator[SharedPlatform]:
    with shared_platform(servers) as platform:
        yield platform


@pytest.fixture
def settings(request: pytest.FixtureRequest, servers: Settings) -> Iterator[Settings]:
    if request.node.get_closest_marker(OWN_PLATFORM):
        with cloned_platform(servers) as settings:
            yield settings
        return
    platform: SharedPlatform = request.getfixturevalue("module_platform")
    yield platform.settings()
    if request.node.stash.get(FAILED, False):
        platform.end()
        return
    try:
        platform.rest()
    except AssertionError:
        # This test fails, and the next one has a platform without its node.
        platform.end()
        raise


@pytest.fixture
def second_api_url(settings: Settings) -> Iterator[str]:
    """A second API process on the same database."""
    with ApiProcess(settings).serving() as url:
        yield url


@pytest.fixture
def vault(settings: Settings) -> Iterator[Vault]:
    with Vault(settings) as vault:
        yield vault


@pytest.fixture
async def admin(settings: Settings) -> AsyncIterator[GpuaasClient]:
    async with GpuaasClient(settings.api_url, PasswordCredentials(*admin_credentials(settings))) as client:
        yield client


@pytest.fixture
async def world(admin: GpuaasClient) -> AsyncIterator[World]:
    """A tenant with a project, a simulated node, an app and its controller's account."""
    async with World.create(admin, secrets.token_hex(4)) as world:
        yield world
