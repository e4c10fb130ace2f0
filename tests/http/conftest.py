"""One platform for the whole suite; every test makes tenants of its own in it."""

import secrets
from collections.abc import AsyncIterator, Iterator

import pytest

from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack.settings import Settings
from tests.support.openbao import Vault
from tests.support.processes import ApiProcess
from tests.support.services import admin_credentials, platform_services
from tests.support.world import World


@pytest.fixture(scope="session")
def settings() -> Iterator[Settings]:
    with platform_services("http") as settings:
        yield settings


@pytest.fixture(scope="session")
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
