"""The OpenAPI document: what FastAPI finds out by itself, completed by the conventions that every route keeps."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from gpuaas_contract.base import OwnedResource
from gpuaas_contract.problems import (
    CORRELATION_HEADER,
    IDEMPOTENCY_HEADER,
    IDEMPOTENCY_HOURS,
    PROBLEM_MEDIA_TYPE,
    Code,
    Problem,
)
from gpuaas_contract.sessions import CSRF_HEADER, SESSION_COOKIE
from gpuaas_platform.api.context import KEY_LIMIT, authenticated_agent, authenticated_context
from gpuaas_platform.api.examples import examples_of
from gpuaas_platform.api.problems import OAUTH_ROUTES
from gpuaas_platform.api.routing import permission_of
from gpuaas_platform.identity.rules.policy import POLICY, Permission

Json = dict[str, Any]
_READS = {"GET", "HEAD"}
_REFUSALS = {
    400: "The request is not valid, or not now: `error` says it in OAuth's words.",
    401: "Who calls is not known, or what it showed is not valid.",
    403: "The caller may know of this, but may not do it.",
    404: "It does not exist, or the caller may not know of it: both look alike.",
    409: "The present state does not allow it, or a request with the same idempotency key is still running.",
    410: "The cursor is too old: list again, then go on from a fresh one.",
    412: "The resource is not at the revision that If-Match names.",
    413: "The body is too large.",
    422: "The request is not valid, or its idempotency key was used for another one.",
    429: "Too many requests: wait for Retry-After.",
    503: "The database, the secrets server, the registry or the machine's node is away: wait for Retry-After.",
}
_OAUTH_REFUSALS = (400, 401, 413, 429, 503)
_RETRY = {code.status for code in Code if code.retryable}
_REFUSED_BY_STATE = {"get_instance_receipt", "get_member_receipt", "get_member_port"}
"""Reads that are refused where what they ask for is not there yet, or cannot be had now."""


def openapi_document(app: FastAPI) -> Json:
    if app.openapi_schema is None:
        app.openapi_schema = _build(app)
    return app.openapi_schema


def _build(app: FastAPI) -> Json:
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    components = document["components"]
    for unused in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(unused, None)
    components["schemas"]["Problem"] = _problem_schema(components["schemas"])
    components["headers"] = _HEADERS
    components["parameters"] = _PARAMETERS
    components["securitySchemes"] = _SECURITY
    components["responses"] = {f"Refused{status}": _refusal(status) for status in _REFUSALS if status != 400}
    components["responses"] |= {f"OAuthRefused{status}": _oauth_refusal(status) for status in _OAUTH_REFUSALS}
    for route in app.routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            for method in route.methods or ():
                _complete(document["paths"][route.path][method.lower()], route, method, components["schemas"])
    return document


def _problem_schema(schemas: Json) -> Json:
    schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}", mode="serialization")
    for name, definition in schema.pop("$defs").items():
        schemas.setdefault(name, definition)
    return schema


def _complete(operation: Json, route: APIRoute, method: str, schemas: Json) -> None:
    permission = permission_of(route)
    conventional = _depends_on(route, authenticated_context)
    mutates = conventional and method not in _READS
    operation["summary"] = route.name.replace("_", " ").capitalize()
    operation.setdefault("description", f"{operation['summary']}. Permission: `{permission.value}`.")
    parameters = operation.setdefault("parameters", [])
    parameters.append({"$ref": "#/components/parameters/CorrelationId"})
    if mutates:
        parameters += [
            {"$ref": f"#/components/parameters/{name}"} for name in ("IdempotencyKey", "IfMatch", "CsrfToken")
        ]
    owned = isinstance(route.response_model, type) and issubclass(route.response_model, OwnedResource)
    if owned and method == "GET":
        parameters.append({"$ref": "#/components/parameters/IfNoneMatch"})
    _complete_body(operation, schemas)
    _complete_answers(operation, route, mutates=mutates, owned=owned)
    statuses = _refusals(operation, permission, mutates=mutates)
    if route.name in _REFUSED_BY_STATE:
        statuses.add(409)
    if route.path in OAUTH_ROUTES:
        statuses = statuses - {403, 404, 409, 422} | {400, 401, 429}
    kind = "OAuthRefused" if route.path in OAUTH_ROUTES else "Refused"
    for status in sorted(statuses):
        operation["responses"][str(status)] = {"$ref": f"#/components/responses/{kind}{status}"}
    if permission != Permission.ANONYMOUS:
        agent = _depends_on(route, authenticated_agent)
        operation["security"] = [{"agentAssertion": []}] if agent else [{"bearerToken": []}, {"sessionCookie": []}]


def _depends_on(route: APIRoute, dependency: object) -> bool:
    return any(dependant.call is dependency for dependant in route.dependant.dependencies)


def _complete_body(operation: Json, schemas: Json) -> None:
    for media in operation.get("requestBody", {}).get("content", {}).values():
        media["examples"] = {name: {"value": value} for name, value in examples_of(media["schema"], schemas).items()}


def _complete_answers(operation: Json, route: APIRoute, *, mutates: bool, owned: bool) -> None:
    headers: Json = {CORRELATION_HEADER: {"$ref": "#/components/headers/CorrelationId"}}
    if owned:
        headers["ETag"] = {"$ref": "#/components/headers/ETag"}
    if mutates:
        headers["Idempotency-Replayed"] = {"$ref": "#/components/headers/IdempotencyReplayed"}
    operation["responses"].pop("422", None)
    for answer in operation["responses"].values():
        answer["headers"] = headers
        answer["description"] = "Done." if mutates else "The answer."
    if owned and "GET" in (route.methods or ()):
        operation["responses"]["304"] = {"description": "The caller has this revision already.", "headers": headers}


def _refusals(operation: Json, permission: Permission, *, mutates: bool) -> set[int]:
    statuses = {503}
    if any("name" in parameter for parameter in operation["parameters"]) or "requestBody" in operation or mutates:
        statuses.add(422)
    if permission != Permission.ANONYMOUS:
        statuses |= {401, 422, 429}
    if permission in POLICY:
        statuses |= {403, 404}
    if permission in {Permission.PERSON, Permission.OWN_LOGIN} or mutates or "requestBody" in operation:
        statuses |= {403, 404}
    if mutates:
        statuses |= {409, 412}
    if "requestBody" in operation:
        statuses |= {401, 409, 413, 429}
    named = {parameter.get("name", "") for parameter in operation["parameters"]}
    if any(
        parameter.get("in") == "path" or parameter.get("name", "").endswith("_id")
        for parameter in operation["parameters"]
    ):
        statuses.add(404)
    if "since" in named:
        statuses.add(410)
    return statuses


def _refusal(status: int) -> Json:
    headers = {CORRELATION_HEADER: {"$ref": "#/components/headers/CorrelationId"}}
    if status in _RETRY:
        headers["Retry-After"] = {"$ref": "#/components/headers/RetryAfter"}
    if status == 401:
        headers["WWW-Authenticate"] = {"$ref": "#/components/headers/WwwAuthenticate"}
    content = {PROBLEM_MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {"description": _REFUSALS[status], "headers": headers, "content": content}


def _oauth_refusal(status: int) -> Json:
    """In OAuth's media type as well: clients that know nothing of this platform read `error`."""
    refusal = _refusal(status)
    return {**refusal, "content": {**refusal["content"], "application/json": refusal["content"][PROBLEM_MEDIA_TYPE]}}


def _text(description: str, **schema: Any) -> Json:
    return {"description": description, "schema": {"type": "string", **schema}}


_HEADERS: Json = {
    "CorrelationId": _text("Names this request in logs, audit entries, operations and events."),
    "ETag": _text("The revision of the resource in quotes; give it back as If-Match or If-None-Match."),
    "IdempotencyReplayed": _text("`true` where this is the first answer to the same key again."),
    "RetryAfter": {"description": "Seconds to wait before the next try.", "schema": {"type": "integer", "minimum": 1}},
    "WwwAuthenticate": _text("The scheme to authenticate with."),
}
_PARAMETERS: Json = {
    "CorrelationId": {
        "name": CORRELATION_HEADER,
        "in": "header",
        **_text(
            "Names the request; made by the platform where it is absent or malformed, or taken from `traceparent`.",
            pattern="^[A-Za-z0-9._:-]{8,64}$",
        ),
    },
    "IdempotencyKey": {
        "name": IDEMPOTENCY_HEADER,
        "in": "header",
        **_text(
            f"The same key with the same request has one effect and one answer, for {IDEMPOTENCY_HOURS} hours.",
            minLength=1,
            maxLength=KEY_LIMIT,
        ),
    },
    "IfMatch": {
        "name": "If-Match",
        "in": "header",
        **_text("An ETag: change the resource only while it is at that revision.", pattern='^(\\*|"?[0-9]+"?)$'),
    },
    "CsrfToken": {
        "name": CSRF_HEADER,
        "in": "header",
        **_text("The session's token; needed only where the caller is known by its session cookie."),
    },
    "IfNoneMatch": {
        "name": "If-None-Match",
        "in": "header",
        **_text("An ETag: answer 304 while the resource is at that revision.", pattern='^"?[0-9]+"?$'),
    },
}
_SECURITY: Json = {
    "bearerToken": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "A short-lived token."},
    "sessionCookie": {
        "type": "apiKey",
        "in": "cookie",
        "name": SESSION_COOKIE,
        "description": "A browser's session. Changes also need its token in X-CSRF-Token, from the same origin.",
    },
    "agentAssertion": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "A node agent signs one assertion per request with its own key.",
    },
}
