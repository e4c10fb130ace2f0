"""The matrix of every route by every kind of principal, found out by asking through HTTP.

Routes, parameters and bodies come from the application itself and from the examples of its OpenAPI document, so
that a new route is in the matrix as soon as it exists."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import websockets
from fastapi.routing import APIRoute, APIWebSocketRoute

from gpuaas_contract import ids
from gpuaas_contract.identity import PrincipalKind
from gpuaas_contract.problems import Code
from gpuaas_platform.api.app import declare_app
from gpuaas_platform.api.routing import permission_of
from gpuaas_platform.identity.rules.policy import PEOPLE_ONLY, POLICY, Permission, Scope
from gpuaas_stack.settings import Settings
from tests.support.policy_world import Asker, PolicyWorld, policy_world

ALLOWED, UNKNOWN, DENIED, HIDDEN = "yes", "401", "403", "404"
_OUTCOMES = {Code.UNAUTHENTICATED: UNKNOWN, Code.FORBIDDEN: DENIED, Code.NOT_FOUND: HIDDEN}
_FRESH = {"join_token", "client_assertion", "name", "node_name", "email"}
_FILTERS = ("tenant_id", "project_id", "instance_id")
# The policy is asked before the revision: who may do it gets 412, and the world stays as it is.
_NO_EFFECT = {"If-Match": '"999999"'}
CORRELATION = "matrix-correlation"

EXCEPTIONS: dict[tuple[str, str], tuple[str, str]] = {
    ("WS /v1/agent/streams/{stream_id}", "node agent"): (
        HIDDEN,
        "a stream exists only for the seconds in which the platform waits for the agent to open it",
    ),
}
"""Cells that differ from what the policy table says, each with its reason. Keep it short."""


@dataclass(frozen=True)
class Row:
    method: str
    path: str
    variant: str
    permission: Permission
    operation_id: str
    query: tuple[str, ...] = ()
    body: Any = None
    media_type: str = ""

    @property
    def title(self) -> str:
        return f"{self.method} {self.path}" + (f" ({self.variant})" if self.variant else "")

    @property
    def parameters(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

    @property
    def names(self) -> set[str]:
        """All that the request names: in its path, its query and its body."""
        return {*self.parameters, *self.query, *_keys(self.body)}


def _keys(body: Any) -> Iterator[str]:
    if isinstance(body, dict):
        for key, value in body.items():
            yield key
            yield from _keys(value)
    elif isinstance(body, list):
        for value in body:
            yield from _keys(value)


def rows() -> list[Row]:
    app = declare_app()
    document = app.openapi()
    found: list[Row] = []
    for route in app.routes:
        if isinstance(route, APIWebSocketRoute):
            found.append(Row("WS", route.path, "", permission_of(route), route.name))
        elif isinstance(route, APIRoute):
            for method in sorted(route.methods or ()):
                if not route.include_in_schema:
                    found.append(_page_row(method, route))
                    continue
                operation = document["paths"][route.path][method.lower()]
                found += _rows_of(method, route, operation)
    return sorted(found, key=lambda row: (row.path, row.method, row.variant))


def _page_row(method: str, route: APIRoute) -> Row:
    """A page for people is not in the OpenAPI document: its forms name a code that nobody waits with."""
    body = {"code": "BCDF-GHJK"} if method == "POST" else None
    form = "application/x-www-form-urlencoded" if body else ""
    return Row(method, route.path, "", permission_of(route), route.name, (), body, form)


def _rows_of(method: str, route: APIRoute, operation: dict[str, Any]) -> Iterator[Row]:
    permission = permission_of(route)
    contents = operation.get("requestBody", {}).get("content", {"": {}})
    asked = [parameter for parameter in operation["parameters"] if parameter.get("in") == "query"]
    needed = tuple(parameter["name"] for parameter in asked if parameter.get("required"))
    for media_type, media in contents.items():
        examples = media.get("examples", {"": {"value": None}})
        for name, example in sorted(examples.items()):
            variant = name if len(examples) > 1 else ""
            yield Row(method, route.path, variant, permission, route.name, needed, example["value"], media_type)
    for name in _FILTERS:
        if name in {parameter["name"] for parameter in asked}:
            yield Row(method, route.path, f"?{name}", permission, route.name, (name,))


@dataclass
class Matrix:
    columns: list[str]
    cells: dict[str, dict[str, str]] = field(default_factory=dict)
    """By the title of a row, then by the name of an asker."""
    disagreements: list[str] = field(default_factory=list)
    """Cells that are not as the policy table says, and that no exception covers."""
    leaks: list[str] = field(default_factory=list)
    """Answers to strangers that told them something."""
    compared: int = 0
    """How many answers about things of others were compared with answers about nothing."""


async def walk(settings: Settings) -> Matrix:
    # Below the five seconds after which the server closes a connection: on a busy machine both could meet.
    limits = httpx.Limits(keepalive_expiry=1)
    async with (
        policy_world(settings) as world,
        httpx.AsyncClient(base_url=settings.api_url, timeout=60, limits=limits) as http,
    ):
        matrix = Matrix([asker.name for asker in world.askers])
        # The link of the world's own node comes last: a second connection takes its place.
        for row in sorted(rows(), key=lambda row: row.path.endswith("/agent/link")):
            matrix.cells[row.title] = {}
            for asker in world.askers:
                outcome = await _cell(http, world, row, asker, matrix)
                matrix.cells[row.title][asker.name] = outcome
                expected, _ = EXCEPTIONS.get((row.title, asker.name)) or (_expected(world, row, asker), "")
                if outcome != expected:
                    matrix.disagreements.append(f"{row.title} as {asker.name}: {outcome}, expected {expected}")
        return matrix


async def _cell(http: httpx.AsyncClient, world: PolicyWorld, row: Row, asker: Asker, matrix: Matrix) -> str:
    values = dict(world.values)
    if "access_grant_id" in row.parameters:
        values["access_grant_id"] = await world.grant_for(asker)
    if "ssh_key_id" in row.parameters:
        values["ssh_key_id"] = await world.ssh_key_of(asker)
    if "session_id" in row.parameters:
        values["session_id"] = await world.session_of(asker)
    answer = await _ask(http, world, row, asker, values)
    if asker.is_stranger:
        asked = {values.get(name) for name in row.names}
        told = [id for id in world.project_ids - asked if id in answer.text]
        if told:
            matrix.leaks.append(f"{row.title} told {asker.name} of {told}")
        if answer.status_code == 404:
            await _compare_with_nothing(http, world, row, asker, values, answer, matrix)
    if not answer.is_error:
        return ALLOWED
    if answer.headers.get("content-type", "").startswith("text/html"):
        return next((outcome for code, outcome in _OUTCOMES.items() if code.status == answer.status_code), ALLOWED)
    return _OUTCOMES.get(answer.json().get("code"), ALLOWED)


async def _compare_with_nothing(
    http: httpx.AsyncClient,
    world: PolicyWorld,
    row: Row,
    asker: Asker,
    values: dict[str, str],
    answer: httpx.Response,
    matrix: Matrix,
) -> None:
    """Another's object must answer byte for byte like one that does not exist."""
    # One id may go by two names: both stand for the same nothing.
    unlike = {values[name]: _like(values[name]) for name in values if name in row.names}
    nothing = {name: unlike.get(value, value) for name, value in values.items()}
    other = await _ask(http, world, row, asker, nothing)
    matrix.compared += 1
    if _anonymised(answer, values) != _anonymised(other, nothing):
        matrix.leaks.append(f"{row.title} answers {asker.name} differently where there is nothing: {other.text}")


def _like(value: str) -> str:
    prefix, _, rest = value.partition("_")
    return ids.new_id(prefix) if len(rest) == 26 else value


def _anonymised(answer: httpx.Response, values: dict[str, str]) -> tuple[int, str, list[tuple[str, str]]]:
    text = answer.text
    for name, value in values.items():
        text = text.replace(value, f"<{name}>")
    headers = [(name, value) for name, value in answer.headers.items() if name != "date"]
    return answer.status_code, text, headers


async def _ask(
    http: httpx.AsyncClient, world: PolicyWorld, row: Row, asker: Asker, values: dict[str, str]
) -> httpx.Response:
    headers = {"X-Correlation-Id": CORRELATION}
    if (bearer := await asker.bearer()) is not None:
        headers["Authorization"] = f"Bearer {bearer}"
    path = row.path
    for name in row.parameters:
        assert name in values, f"the policy world has no value for the path parameter {name}: add one"
        path = path.replace(f"{{{name}}}", values[name])
    if row.method == "WS":
        return await _upgrade(world.world.admin.api_url.replace("http", "ws", 1) + path, headers)
    if row.method != "GET":
        headers |= _NO_EFFECT
    query = {name: values[name] for name in row.query}
    content: dict[str, Any] = {}
    if row.body is not None:
        body = await _filled(world, row, row.body, values)
        content = {"data" if "form" in row.media_type else "json": body}
    return await http.request(row.method, path, params=query, headers=headers, **content)


async def _filled(world: PolicyWorld, row: Row, body: Any, values: dict[str, str]) -> Any:
    """The example with the world's own ids, and with names that are not taken."""
    if isinstance(body, list):
        return [await _filled(world, row, item, values) for item in body]
    if not isinstance(body, dict):
        return body
    filled = {}
    for name, value in body.items():
        if row.operation_id == "log_in" and name in {"email", "password"}:
            filled[name] = world.login[name]
        elif name in _FRESH and isinstance(value, str):
            filled[name] = await world.fresh(name) + ("@example.com" if name == "email" else "")
        elif name in values and isinstance(value, str) and name != "version":
            filled[name] = values[name]
        else:
            filled[name] = await _filled(world, row, value, values)
    return filled


async def _upgrade(url: str, headers: dict[str, str]) -> httpx.Response:
    try:
        async with websockets.connect(url, additional_headers=headers, open_timeout=20):
            return httpx.Response(101)
    except websockets.InvalidStatus as refused:
        kept = list(refused.response.headers.raw_items())
        return httpx.Response(refused.response.status_code, headers=kept, content=bytes(refused.response.body or b"{}"))


def _expected(world: PolicyWorld, row: Row, asker: Asker) -> str:
    """Look this cell up in the policy table."""
    if row.permission == Permission.ANONYMOUS:
        return ALLOWED
    if row.permission == Permission.AGENT:
        if asker.is_agent_of is None:
            return UNKNOWN
        # An agent that brings nothing but its own key asks about itself.
        about_own_node = asker.is_agent_of == world.world.node.node_id or not row.names - {"public_key_pem"}
        return ALLOWED if about_own_node else HIDDEN
    if asker.caller is None:
        return UNKNOWN
    scope = _scope(world, row)
    if _OF_APP & {*row.parameters} and not _sees_app(world, asker):
        # Who may not know of an app, publishes it or not: artifacts are named by whoever publishes them.
        return DENIED if row.permission == Permission.APP_PUBLISH and "slug" in row.parameters else HIDDEN
    if "correlation_id" in row.parameters:
        # A trace is there for those who may see something in it: the deploy of the world's instance.
        return ALLOWED if asker.caller.may(Permission.INSTANCE_READ, world.instance_scope) else HIDDEN
    if row.permission in PEOPLE_ONLY and asker.caller.kind != PrincipalKind.USER:
        return DENIED
    if row.permission in {Permission.PERSON, Permission.OWN_LOGIN}:
        return ALLOWED
    if row.permission not in POLICY:
        sees = not _is_project_scoped(row) or asker.caller.sees(scope)
        return ALLOWED if sees else HIDDEN
    if row.method == "GET" and scope == Scope() and _is_filtered_list(row):
        return ALLOWED
    if asker.caller.may(row.permission, scope):
        return ALLOWED
    if row.permission in _OF_ARTIFACTS and scope.project_id is None and not _sees_app(world, asker):
        return HIDDEN
    # A grant is its owner's alone: who may not have one asked with somebody else's.
    hidden = "access_grant_id" in row.names or not asker.caller.sees(scope)
    return HIDDEN if hidden and (scope.tenant_id or scope.project_id) else DENIED


_OF_APP = {"slug", "app_version_id", "entitlement_id"}
_ABOUT_APPS = {Permission.APP_PUBLISH, Permission.ENTITLEMENT_MANAGE}
_OF_ARTIFACTS = {Permission.ARTIFACT_READ, Permission.ARTIFACT_MANAGE}


def _sees_app(world: PolicyWorld, asker: Asker) -> bool:
    """The world's tenant is entitled to its app; nobody else is."""
    caller = asker.caller
    assert caller is not None
    own = caller.may(Permission.APP_PUBLISH, Scope(app_slug=world.world.app_slug))
    return own or caller.sees(world.tenant_scope) or caller.app_slug == world.world.app_slug


_OF_INSTANCE = {
    "instance_id",
    "member_id",
    "operation_id",
    "bulk_id",
    "delivery_id",
    "secret_id",
    "secret_delivery_id",
    "preflight_id",
}
_OF_PROJECT = _OF_INSTANCE | {
    "project_id",
    "allocation_id",
    "volume_id",
    "access_grant_id",
    "grant_id",
    "owner_id",
    "service_account_id",
    "membership_id",
    "credential_id",
    "artifact_id",
    "trusted_key_id",
}
_PLATFORM_WIDE = {
    Permission.METRICS_READ,
    Permission.NODE_READ,
    Permission.NODE_MANAGE,
    Permission.USER_MANAGE,
    Permission.AUDIT_READ,
}


def _is_project_scoped(row: Row) -> bool:
    return bool(_OF_PROJECT & row.names)


def _scope(world: PolicyWorld, row: Row) -> Scope:
    if row.permission in _ABOUT_APPS:
        tenant_id = world.world.tenant.id if {"tenant_id", "entitlement_id"} & row.names else None
        return Scope(tenant_id=tenant_id, app_slug=world.world.app_slug)
    if row.permission in _OF_ARTIFACTS and "app_slug" in row.names:
        return Scope(app_slug=world.world.app_slug)
    if _OF_INSTANCE & row.names:
        return world.instance_scope
    if _is_project_scoped(row):
        return world.project_scope
    return world.tenant_scope if "tenant_id" in row.names else Scope()


def _is_filtered_list(row: Row) -> bool:
    """A list that names no scope shows each caller what it may see, be that nothing."""
    return not row.parameters and row.permission not in _PLATFORM_WIDE


def to_markdown(matrix: Matrix, all_rows: list[Row]) -> str:
    lines = [
        "# Policy matrix",
        "",
        "Every route by every kind of principal, found out by asking through HTTP. Generated by `make reference`;",
        "a test compares it with what the platform really answers. Do not edit it by hand.",
        "",
        "`yes`: let through to what the route does. `401`: not known. `403`: may know of it, may not do it. `404`:",
        "answered exactly like something that does not exist. Lists without a filter hold what the caller may see.",
        "",
        "| route | permission | " + " | ".join(matrix.columns) + " |",
        "|---|---|" + "---|" * len(matrix.columns),
    ]
    for row in all_rows:
        cells = " | ".join(matrix.cells[row.title][column] for column in matrix.columns)
        lines.append(f"| `{row.title}` | `{row.permission.value}` | {cells} |")
    lines += ["", "Exceptions from the policy table:", ""]
    for (title, asker), (outcome, reason) in EXCEPTIONS.items():
        lines.append(f"- `{title}` as {asker}: {outcome}, because {reason}.")
    return "\n".join(lines) + "\n"


def run_walk(settings: Settings) -> Matrix:
    return asyncio.run(walk(settings))
