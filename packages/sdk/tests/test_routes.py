"""Every route of the platform has a typed method. All methods are called here, and what they send is compared."""

import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel

from gpuaas_contract.allocations import Shape
from gpuaas_contract.app_usage import AppUsageReport
from gpuaas_contract.instances import AccountId, InstanceDeploy, Placement
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.operations import OperationCreate, OperationError
from gpuaas_sdk.changes import ChangeFeed
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import (
    ClientSecretCredentials,
    PasswordCredentials,
    StaticToken,
)
from gpuaas_sdk.device import DeviceLogin
from gpuaas_sdk.errors import GpuaasError
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes
from gpuaas_sdk.retry import NO_RETRY

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "openapi.json"
NOT_FOR_CLIENTS = {
    "is_alive": "for supervisors",
    "is_ready": "for balancers",
    "read_metrics": "for Prometheus",
    "locate_artifact": "for node agents",
    "check_registry_token": "for the guard in front of the registry",
    "certify_host": "for node agents",
    "offer_agent_key": "for node agents",
    "open_session": "for browsers: the answer is a cookie",
    "get_public_keys": "for programs that verify our tokens with a library of their own",
    "get_authorization_server_metadata": "for OAuth libraries",
}
NO_CALLS = {"correlation", "close", "open_stream", "open_port"}
BY_NAME = {
    "email": "ada@example.com",
    **dict.fromkeys(("password", "current_password", "new_password"), "correct horse battery"),
    "digest": "sha256:" + 64 * "0",
    "public_key": "ssh-ed25519 AAAA",
    "path": "/home/shared",
}
MANIFEST = {
    "schema": "gpuaas.app/v1",
    "slug": "echo",
    "title": "Echo",
    "version": "1.0.0",
    "runtime": {"name": "echo", "version": "7"},
    "components": [{"key": "head", "title": "Head", "primary": True}],
    "operations": [{"kind": "deploy", "title": "Deploy"}, {"kind": "decommission", "title": "Decommission"}],
}


USAGE: Any = {
    "record_id": "1",
    "work_id": "7",
    "subject": "ada",
    "quantity": 1,
    "unit": "seconds",
    "started_at": "2026-01-01T00:00:00Z",
    "ended_at": "2026-01-01T00:00:01Z",
}


class Recorder:
    def __init__(self) -> None:
        self.sent: set[tuple[str, str]] = set()

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        self.sent.add((request.method, request.url.path))
        return httpx.Response(418, json={})


class Lease:
    operation_id = "op_1"
    fencing_token = 7


def example(annotation: Any, file: Path) -> Any:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return example(next(part for part in typing.get_args(annotation) if part is not type(None)), file)
    if typing.get_origin(annotation) is Sequence:
        return [example(typing.get_args(annotation)[0], file)]
    made: dict[Any, Any] = {
        str: "name-1",
        AccountId: "sva_" + "0" * 26,
        int: 1,
        float: 1.0,
        bool: True,
        Path: file,
        Manifest: Manifest.model_validate(MANIFEST),
        Shape: Shape(),
        InstanceDeploy: InstanceDeploy(
            project_id="prj_1",
            app_slug="echo",
            name="one",
            placement_intent=[Placement(component_key="head", allocation_id="alc_1")],
        ),
        OperationCreate: OperationCreate(kind="decommission"),
        AppUsageReport: AppUsageReport(**USAGE),
        OperationError: OperationError(code="timeout", detail="late", retryable=True),
    }
    if typing.get_origin(annotation) is Sequence:
        return [example(typing.get_args(annotation)[0], file)]
    if annotation in made:
        return made[annotation]
    if inspect.isclass(annotation) and issubclass(annotation, Enum):
        return next(iter(annotation))
    assert not (inspect.isclass(annotation) and issubclass(annotation, BaseModel)), f"give an example of {annotation}"
    return Lease()


def methods(client: GpuaasClient) -> Iterator[Callable[..., Any]]:
    for name, value in vars(GpuaasClient).items():
        if isinstance(value, cached_property):
            noun = getattr(client, name)
            assert isinstance(noun, ResourceRoutes), name
            yield from (getattr(noun, verb) for verb in vars(type(noun)) if not verb.startswith("_"))
        elif inspect.isfunction(value) and not name.startswith("_") and name not in NO_CALLS:
            yield getattr(client, name)


async def call(method: Callable[..., Any], file: Path) -> None:
    taken = inspect.signature(method).parameters
    parameters = [p for p in taken.values() if p.default is p.empty]
    hints = typing.get_type_hints(method, include_extras=True) if parameters else {}
    by_name = {p.name: BY_NAME.get(p.name) for p in parameters if hints[p.name] is str}
    values = {p.name: by_name.get(p.name) or example(hints[p.name], file) for p in parameters}
    if {"app_slug", "project_id"} <= set(taken) and "project_id" not in values:
        # One of the two, and only one.
        values["project_id"] = "prj_1"
    # The platform answers nothing but refusals here: what was asked is all that counts.
    with suppress(GpuaasError, TypeError):
        result = method(**values)
        if inspect.isawaitable(result):
            await result
        elif isinstance(result, Pager):
            await result.all()
        elif isinstance(result, ChangeFeed):
            await result.page(wait=0)
        elif inspect.isasyncgen(result):
            await anext(result)


@pytest.mark.skipif(not DOCUMENT.exists(), reason="needs the repository's OpenAPI document")
async def test_every_route_has_a_method(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"content")
    recorder = Recorder()
    options: dict[str, Any] = {"retry": NO_RETRY, "transport": httpx.MockTransport(recorder)}
    async with GpuaasClient("http://platform.test", StaticToken("t"), **options) as client:
        for method in methods(client):
            await call(method, file)
    for credentials in (PasswordCredentials("a@b", "password"), ClientSecretCredentials("sva_1", "secret")):
        async with GpuaasClient("http://platform.test", credentials, **options) as client:
            await call(client.fetch_token, file)
    async with DeviceLogin("http://platform.test", "test", transport=options["transport"]) as login:
        await call(login.start, file)
    document = json.loads(DOCUMENT.read_text())
    missing = [
        f"{operation['operationId']}: {verb.upper()} {path}"
        for path, operations in document["paths"].items()
        for verb, operation in operations.items()
        if operation["operationId"] not in NOT_FOR_CLIENTS and not _was_sent(recorder.sent, verb, path)
    ]
    assert not missing, "the client has no method for:\n" + "\n".join(missing)
    known = {operation["operationId"] for operations in document["paths"].values() for operation in operations.values()}
    assert not set(NOT_FOR_CLIENTS) - known


def _was_sent(sent: set[tuple[str, str]], verb: str, path: str) -> bool:
    pattern = re.compile(re.sub(r"\{[^}]+\}", "[^/]+", path) + "$")
    return any(method == verb.upper() and pattern.match(asked) for method, asked in sent)
