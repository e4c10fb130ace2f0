"""Starting: the schema is there, old, or made by two at once."""

import httpx

from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack.settings import Settings
from tests.support.processes import ApiProcess, admin_file, fresh_database


async def test_two_processes_that_start_at_once_on_an_empty_database(settings: Settings) -> None:
    first = ("root@gpuaas.example", "a password that stays")
    with fresh_database(settings) as database, admin_file(settings.state_dir, *first) as file:
        one, two = (
            ApiProcess(settings, database, bootstrap_admin_file=file, migrate_at_start="true") for _ in range(2)
        )
        with one.starting() as first_url, two.starting() as second_url:
            one.wait_ready()
            two.wait_ready()
            for url in (first_url, second_url):
                async with GpuaasClient(url, PasswordCredentials(*first)) as client:
                    assert [user.email async for user in client.users.list()] == [first[0]]


async def test_an_old_schema_is_not_served(settings: Settings) -> None:
    with fresh_database(settings) as database:
        process = ApiProcess(settings, database, migrate_at_start="false")
        refused = process.run("serve")
        assert refused.returncode != 0
        assert "gpuaas-platform migrate" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert process.run("migrate").returncode == 0
        with process.serving() as url:
            async with httpx.AsyncClient(base_url=url) as http:
                assert (await http.get("/readyz")).status_code == 200
