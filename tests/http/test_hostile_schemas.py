"""Schemas that are made to keep the platform busy: they hold up neither reads nor others, and are refused by place."""

import array
import asyncio
import fcntl
import os
import signal
import termios
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gpuaas_contract.instances import InstanceDeploy, Placement
from gpuaas_contract.manifest import Manifest
from gpuaas_sdk.client import GpuaasClient
from gpuaas_stack.settings import Settings
from tests.support.hostile_schemas import (
    check_workers,
    four_patterns_on_a_long_default,
    is_check_worker,
    slow_schema,
)
from tests.support.processes import ApiProcess
from tests.support.waiting import wait_until
from tests.support.world import MANIFEST, World


def body_of(slug: str, **changes: Any) -> dict[str, Any]:
    return {"manifest": {**MANIFEST, "slug": slug, **changes}}


@pytest.fixture
def api(settings: Settings) -> Iterator[ApiProcess]:
    """Of the test's own: its workers are looked at."""
    process = ApiProcess(settings, schema_check_seconds="1")
    with process.serving():
        yield process


@asynccontextmanager
async def client_of(api: ApiProcess, admin: GpuaasClient) -> AsyncIterator[httpx.AsyncClient]:
    token = {"Authorization": f"Bearer {(await admin.fetch_token()).access_token}"}
    async with httpx.AsyncClient(base_url=f"{api.url}/v1", headers=token, timeout=180) as http:
        yield http


async def test_reads_and_others_are_answered_while_a_manifest_is_checked(
    api: ApiProcess, admin: GpuaasClient, world: World
) -> None:
    """The worker stands still, as if its check took for ever: only the one who waits for it waits."""
    async with client_of(api, admin) as http:
        assert (await http.post("/app-versions", json=body_of(f"warm-{world.app_slug}"))).status_code == 201
        (worker,) = check_workers(api.pid)
        os.kill(worker, signal.SIGSTOP)
        try:
            waiting = asyncio.create_task(http.post("/app-versions", json=body_of(f"held-{world.app_slug}")))
            await asyncio.to_thread(
                wait_until, lambda: _has_unread_input(worker), "the manifest is with the worker", every=0.01
            )
            assert (await http.get("/apps")).status_code == 200
            other = await http.post("/app-versions", json=body_of(f"other-{world.app_slug}"))
            assert other.status_code == 201
            assert (await http.get(f"/apps/held-{world.app_slug}/versions/latest")).status_code == 404
            assert not waiting.done()
        finally:
            os.kill(worker, signal.SIGCONT)
        assert (await waiting).status_code == 201


def _has_unread_input(worker: int) -> bool:
    """It reads what it is asked when it goes on."""
    with open(f"/proc/{worker}/fd/0", "rb", buffering=0) as file:
        unread = array.array("i", [0])
        fcntl.ioctl(file, termios.FIONREAD, unread)
        return unread[0] > 0


async def test_four_patterns_on_a_long_default(api: ApiProcess, admin: GpuaasClient, world: World) -> None:
    body = body_of(world.app_slug, version="2.0.0", inputs=four_patterns_on_a_long_default())
    async with client_of(api, admin) as http:
        answer = await http.post("/app-versions", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "manifest_invalid")
    (error,) = answer.json()["errors"]
    assert error["pointer"] == "/manifest/inputs/properties/a/default"
    assert "8192 are allowed" in error["detail"]


async def test_a_slow_manifest_is_stopped_and_the_next_one_is_checked(
    api: ApiProcess, admin: GpuaasClient, world: World
) -> None:
    slow = body_of(world.app_slug, version="2.0.0", inputs=slow_schema(default=1))
    async with client_of(api, admin) as http:
        answer = await http.post("/app-versions", json=slow, headers={"Idempotency-Key": "slow"})
        assert (answer.status_code, answer.json()["code"]) == (422, "schema_too_slow")
        assert [error["pointer"] for error in answer.json()["errors"]] == ["/manifest/inputs"]
        assert not answer.json()["retryable"]
        # The key was used for nothing.
        plain = body_of(world.app_slug, version="2.0.0")
        again = await http.post("/app-versions", json=plain, headers={"Idempotency-Key": "slow"})
        assert again.status_code == 201
        repeated = await http.post("/app-versions", json=plain, headers={"Idempotency-Key": "slow"})
        assert (repeated.json(), repeated.headers["idempotency-replayed"]) == (again.json(), "true")


async def test_slow_inputs_are_refused_and_found_by_a_preflight(
    api: ApiProcess, admin: GpuaasClient, world: World
) -> None:
    """No default, so that it can be published: it takes long for those who fill it in."""
    slow = body_of(world.app_slug, version="3.0.0", inputs=slow_schema())
    await admin.app_versions.publish(Manifest.model_validate(slow["manifest"]))
    head = await world.allocation("slow-head")
    body = InstanceDeploy(
        project_id=world.project.id,
        app_slug=world.app_slug,
        name="slow",
        inputs={"a": 1},
        placement_intent=[Placement(component_key="head", allocation_id=head.id)],
    ).model_dump(mode="json")
    async with client_of(api, admin) as http:
        refused = await http.post("/app-instances", json=body)
        assert (refused.status_code, refused.json()["code"]) == (422, "schema_too_slow")
        assert [error["pointer"] for error in refused.json()["errors"]] == ["/inputs"]
        looked = await http.post("/app-instances/preflight", json=body)
        assert looked.status_code == 201
        assert ("schema_too_slow", "/inputs") in {(f["code"], f["pointer"]) for f in looked.json()["findings"]}
        # Without the input that takes long there is nothing to wait for.
        deployed = await http.post("/app-instances", json={**body, "inputs": {}})
        assert deployed.status_code == 201


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_workers_end_with_their_api(
    settings: Settings, admin: GpuaasClient, world: World, how: signal.Signals
) -> None:
    api = ApiProcess(settings)
    api.start()
    try:
        api.wait_ready()
        async with client_of(api, admin) as http:
            assert (await http.post("/app-versions", json=body_of(f"end-{world.app_slug}"))).status_code == 201
        (worker,) = check_workers(api.pid)
    finally:
        api.end(how)
    wait_until(lambda: not is_check_worker(worker), "the worker has ended", every=0.01)
