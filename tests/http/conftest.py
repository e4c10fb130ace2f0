"""A platform for every test: PostgreSQL and OpenBao are the run's, the database and the API are the test's own."""

import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack.settings import Settings
from tests.support.openbao import Vault
from tests.support.processes import ApiProcess, cloned_platform
from tests.support.services import admin_credentials, template_servers
from tests.support.world import World

LONGEST = ("test_fuzz", "test_policy", "test_feed_load")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The modules that take longest come first, so that no worker is left alone with one of them at the end."""
    items.sort(key=lambda item: item.path.stem not in LONGEST)


@pytest.fixture(scope="session")
def servers() -> Iterator[Settings]:
    with template_servers("http") as settings:
        yield settings


@pytest.fixture
def settings(servers: Settings) -> Iterator[Settings]:
    with cloned_platform(servers) as settings:
        yield settings


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
