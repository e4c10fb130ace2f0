"""Starting: the schema is there, old, or made by two at once."""

import httpx
from argon2 import PasswordHasher

from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack.settings import Settings
from tests.support.database import connect
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


def test_a_first_administrator_who_breaks_the_rules_is_refused_in_words(settings: Settings) -> None:
    weak = ("root@gpuaas.example", " " * 12)
    with fresh_database(settings) as database, admin_file(settings.state_dir, *weak) as file:
        process = ApiProcess(settings, database, bootstrap_admin_file=file, migrate_at_start="true")
        refused = process.run("serve")
    assert refused.returncode != 0
    assert "GPUAAS_BOOTSTRAP_ADMIN_FILE" in refused.stderr
    assert "white space" in refused.stderr
    assert "Traceback" not in refused.stderr


async def test_a_new_password_has_a_rule_and_an_old_one_keeps_working(settings: Settings, admin: GpuaasClient) -> None:
    user = await admin.users.create("old@example.com", "a password with variety")
    with connect(settings) as database:
        kept = PasswordHasher(memory_cost=32).hash("aaaaaaaaaaaa")
        database.execute("UPDATE users SET password_hash = %s WHERE id = %s", [kept, user.id])
    async with httpx.AsyncClient(base_url=settings.api_url) as http:
        logged_in = await http.post("/v1/auth/login", json={"email": user.email, "password": "aaaaaaaaaaaa"})
        assert logged_in.status_code == 200
        own = {"Authorization": f"Bearer {logged_in.json()['access_token']}"}
        operator = {"Authorization": f"Bearer {await admin.token()}"}
        for weak in (" " * 12, "b" * 12, "short"):
            for method, path, body, headers in (
                ("POST", "/v1/auth/password", {"current_password": "aaaaaaaaaaaa", "new_password": weak}, own),
                ("POST", "/v1/users", {"email": "new@example.com", "password": weak}, operator),
                ("PATCH", f"/v1/users/{user.id}", {"password": weak}, operator),
            ):
                answer = await http.request(method, path, json=body, headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
                assert answer.json()["errors"][0]["pointer"].endswith("password")
        body = {"current_password": "aaaaaaaaaaaa", "new_password": "a password with variety"}
        assert (await http.post("/v1/auth/password", json=body, headers=own)).status_code == 200
