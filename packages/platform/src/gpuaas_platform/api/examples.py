"""Examples of request bodies for the OpenAPI document, made from the schema by the names of its fields.

A new route needs nothing here unless a field has a pattern of its own: then the example is refused by its
schema, and the test of the document says which field wants an entry in `FIELDS`. `VARIANTS` holds bodies that
one route takes for more than one purpose; the policy matrix has a row for each."""

from typing import Any

from gpuaas_contract.nouns import Noun

Json = dict[str, Any]


def _id(noun: Noun) -> str:
    return f"{noun.prefix}_06e5k3m7q9v1x3z5b7d9f1h3j5"


FIELDS: dict[str, Any] = {
    **{f"{noun}_id": _id(noun) for noun in Noun if noun.prefix},
    "path": "/home/shared",
    "member_ids": [_id(Noun.MEMBER)],
    "allocation_ids": [_id(Noun.ALLOCATION)],
    "reason": "the machine was stolen",
    "wrapping_token": "s.shown-once",
    "name": "research",
    "node_name": "rack-7",
    "slug": "echo",
    "app_slug": "echo",
    "title": "Research",
    "holder": "controller-1",
    "email": "ada@example.com",
    "password": "correct horse battery",
    "digest": "sha256:" + 64 * "0",
    "public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl ada",
    "public_key_pem": "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n"
    "-----END PUBLIC KEY-----\n",
    "join_token": "gpuaas-join-shown-once",
    "grant_type": "client_credentials",
    "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
    "client_assertion": "a.signed.assertion",
    "client_id": "gpuaas-cli",
    "user_code": "WDJB-MJHT",
    "token": "a refresh token",
    "fencing_token": 7,
    "record_id": "job-7/1",
    "started_at": "2026-01-01T00:00:00Z",
    "ended_at": "2026-01-01T00:01:00Z",
    "unit": "gpu_seconds",
    "component_key": "head",
    "key": "head",
    "kind": "decommission",
    "code": "timeout",
    "type": "Ready",
    "version": "1.0.0",
}
_ASSERTION = {"client_assertion_type": FIELDS["client_assertion_type"], "client_assertion": FIELDS["client_assertion"]}
_KEY = {"public_key_pem": FIELDS["public_key_pem"]}
_ROLE = {"user_id": FIELDS["user_id"]}
VARIANTS: dict[str, dict[str, Json]] = {
    "OperationCreate": {"on a member": {"kind": "recover", "member_id": FIELDS["member_id"]}},
    "InstanceUpdate": {
        "mode": {"mode": "small"},
        "operator": {"operator_account_id": FIELDS["service_account_id"]},
    },
    "Body_exchange_token": {
        "private-key JWT": {"grant_type": "client_credentials", **_ASSERTION},
        "secret": {
            "grant_type": "client_credentials",
            "client_id": FIELDS["service_account_id"],
            "client_secret": "shown-once",
        },
        "device": {
            "grant_type": "urn:ietf:params:oauth:grant-type:device_code",
            "client_id": "gpuaas-cli",
            "device_code": "from-the-start",
        },
        "refresh": {"grant_type": "refresh_token", "refresh_token": "from-the-last-answer"},
    },
    "UserUpdate": {"disable": {"disabled": True}, "one-time password": {"password": FIELDS["password"]}},
    "MembershipCreate": {
        "project role": {**_ROLE, "role": "project_viewer", "project_id": FIELDS["project_id"]},
        "tenant role": {**_ROLE, "role": "tenant_admin", "tenant_id": FIELDS["tenant_id"]},
        "publisher of an app": {**_ROLE, "role": "app_publisher", "app_slug": "echo"},
    },
    "ServiceAccountCreate": {
        "of a project": {"project_id": FIELDS["project_id"], "name": "automation", **_KEY},
        "of a tenant": {"tenant_id": FIELDS["tenant_id"], "name": "automation", **_KEY},
        "controller": {"project_id": FIELDS["project_id"], "name": "controller", "app_slug": "echo", **_KEY},
    },
    "GrantCreate": {"by id": {"user_id": FIELDS["user_id"], "sudo": True}},
    "AllocationCreate": {
        "of a project": {"project_id": FIELDS["project_id"], "name": "one"},
        "of a tenant": {"tenant_id": FIELDS["tenant_id"], "name": "one"},
    },
    "AllocationBatchCreate": {
        "of a project": {"project_id": FIELDS["project_id"], "name": "several", "count": 2},
        "of a tenant": {"tenant_id": FIELDS["tenant_id"], "name": "several", "count": 2},
    },
    "ArtifactRegister": {
        "of a project": {"project_id": FIELDS["project_id"], "name": "model", "digest": FIELDS["digest"]},
        "of an app": {"app_slug": "echo", "name": "packages", "digest": FIELDS["digest"]},
    },
    "TrustedKeyCreate": {
        "of a project": {"project_id": FIELDS["project_id"], "name": "builds", **_KEY},
        "of an app": {"app_slug": "echo", "name": "builds", **_KEY},
    },
    "AppVersionPublish": {
        "two components": {
            "manifest": {
                "schema": "gpuaas.app/v1",
                "slug": "echo",
                "title": "Echo",
                "version": "1.0.0",
                "runtime": {"name": "echo", "version": "7"},
                "components": [
                    {"key": "head", "title": "Head", "primary": True},
                    {"key": "tail", "title": "Tail", "min": 0, "max": 3},
                ],
                "operations": [
                    {"kind": "deploy", "title": "Deploy"},
                    {"kind": "add", "title": "Add a tail", "component": "tail"},
                    {"kind": "decommission", "title": "Decommission"},
                ],
            }
        }
    },
}


def examples_of(schema: Json, schemas: Json) -> dict[str, Any]:
    """One example, or the variants of a body that has several uses."""
    name = schema.get("$ref", "").rpartition("/")[2]
    return VARIANTS.get(name) or {"example": _example(schema, schemas)}


def _example(schema: Json, schemas: Json) -> Any:
    if "$ref" in schema:
        return _example(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    for simple in ("const", "default"):
        if schema.get(simple) is not None:
            return schema[simple]
    if "enum" in schema:
        return schema["enum"][0]
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return _example(schema[choice][0], schemas)
    match schema.get("type"):
        case "object":
            return _object(schema, schemas)
        case "array":
            return [_example(schema["items"], schemas)] if schema.get("minItems") else []
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
        case "string":
            return "text".ljust(schema.get("minLength", 0), ".")
    return {}


def _object(schema: Json, schemas: Json) -> Json:
    """Give an example of each required field."""
    required = schema.get("required", [])
    return {
        name: FIELDS[name] if name in FIELDS else _example(part, schemas)
        for name, part in schema.get("properties", {}).items()
        if name in required
    }
