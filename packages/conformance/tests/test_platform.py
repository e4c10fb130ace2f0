"""The project by each of its names, and what is said about other controllers."""

import re
from typing import Any

import httpx
import pytest

from gpuaas_conformance.platform import KitError, find_machines, find_project, other_controllers
from gpuaas_contract.identity import Project
from gpuaas_sdk.testing import ScriptedPlatform, problem

TIMES = {"revision": 1, "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z"}
PROJECT = "prj_" + "0" * 26


def project(id: str, tenant_id: str, name: str) -> dict[str, Any]:
    return {"id": id, "tenant_id": tenant_id, "name": name, "title": name, **TIMES}


ONE = project("prj_1", "tnt_a", "demo")
OTHER = project("prj_2", "tnt_b", "demo")
ALONE = project("prj_3", "tnt_b", "research")
TENANTS = [
    {"id": id, "name": name, "title": name, "status": "active", **TIMES}
    for id, name in (("tnt_a", "acme"), ("tnt_b", "beta"))
]
ACCOUNTS = [
    {"id": "sva_1", "name": "mine", "app_slug": "x", **TIMES},
    {"id": "sva_2", "name": "off", "app_slug": "x", "disabled": True, **TIMES},
    {"id": "sva_3", "name": "theirs", "app_slug": "y", **TIMES},
]


def platform(accounts: list[dict[str, Any]] | None = None) -> ScriptedPlatform:
    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path.startswith("/v1/projects/"):
            found = [each for each in (ONE, OTHER, ALONE) if path.endswith(f"/{each['id']}")]
            return httpx.Response(200, json=found[0]) if found else problem("not_found", 404)
        lists = {
            "/v1/projects": [ONE, OTHER, ALONE],
            "/v1/tenants": TENANTS,
            "/v1/service-accounts": accounts or [],
            "/v1/allocations": [],
        }
        return httpx.Response(200, json={"items": lists[path]})

    return ScriptedPlatform(answer)


@pytest.mark.parametrize(
    ("wanted", "id"), [("research", "prj_3"), ("acme/demo", "prj_1"), ("beta/demo", "prj_2"), ("tnt_b/demo", "prj_2")]
)
async def test_a_project_is_found_by_each_of_its_names(wanted: str, id: str) -> None:
    async with platform().client() as admin:
        assert (await find_project(admin, wanted)).id == id


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("demo", "2 projects are named 'demo'; give tenant/name or an id: prj_1, prj_2"),
        ("", "there is no project ''"),
        ("acme/", "there is no project 'acme/'"),
        ("acme/research", "there is no project 'acme/research'"),
        ("a/b/c", "there is no project"),
        ("x" * 5_000, "there is no project"),
        ("'; drop", "there is no project"),
        (PROJECT, f"there is no project {PROJECT}"),
    ],
)
async def test_what_is_no_project_is_said(wanted: str, words: str) -> None:
    async with platform().client() as admin:
        with pytest.raises(KitError, match=words):
            await find_project(admin, wanted)


async def test_a_machine_that_is_not_there_is_said() -> None:
    async with platform().client() as admin:
        with pytest.raises(KitError, match="there is no machine 'one' in research"):
            await find_machines(admin, Project.model_validate(ALONE), ("one",))


@pytest.mark.parametrize(
    ("accounts", "words"),
    [([], "no controller has to be stopped"), (ACCOUNTS, "stop every other .* accounts that can: mine$")],
)
async def test_it_is_said_whether_other_controllers_must_be_stopped(accounts: list[dict[str, Any]], words: str) -> None:
    async with platform(accounts).client() as admin:
        said = await other_controllers(admin, Project.model_validate(ALONE), "x")
    assert re.search(words, said), said
