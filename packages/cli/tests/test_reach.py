"""Every route has a command, or is on a short list with the reason why not."""

import json
from pathlib import Path

from cyclopts import App

from gpuaas_cli.main import app

OPENAPI = Path(__file__).parents[3] / "docs" / "reference" / "openapi.json"
NOUNS = {"app-instances": "instance", "app-versions": "app"}
COLLECTION_VERBS = {"get": "list", "post": "create"}
OBJECT_VERBS = {"get": "show", "patch": "update", "delete": "delete"}

NAMED_OTHERWISE = {
    "create_allocation_batch": "allocation create",
    "update_allocation": "allocation rename",
    "grant_allocation_access": "ssh",
    "get_member_port": "tunnel",
    "list_grants": "grant list",
    "create_grant": "grant create",
    "deploy_instance": "instance deploy",
    "list_bulk_operations": "bulk-operation list",
    "request_member_operations": "member run",
    "add_members": "member add",
    "request_operation": "instance run",
    "list_secrets": "secret list",
    "read_secret": "secret read",
    "get_member_receipt": "receipt export",
    "get_manifest_schema": "app schema",
    "list_app_usage": "usage app",
    "publish_app_version": "app publish",
    "get_app_version": "app show",
    "register_artifact": "artifact register",
    "list_audit_batches": "audit verify",
    "get_audit_checkpoint": "audit verify",
    "list_sealed_audit_entries": "audit verify",
    "log_in": "login",
    "start_device_authorization": "login",
    "exchange_token": "login",
    "change_own_password": "password",
    "end_session": "logout",
    "revoke_token": "logout",
    "list_sessions": "session list",
    "end_one_session": "session end",
    "read_changes": "changes watch",
    "end_credential_version": "credential end-version",
    "create_entitlement": "entitlement grant",
    "delete_entitlement": "entitlement revoke",
    "create_join_token": "node join-token",
    "get_member": "member list",
    "get_preflight": "instance preflight",
    "get_principal": "whoami",
    "get_session": "whoami",
    "get_quota": "quota show",
    "set_quota": "quota set",
    "get_registry": "artifact push",
    "get_registry_token": "artifact push",
    "get_registry_upload": "artifact push",
    "update_service_account": "service-account disable",
    "list_service_account_keys": "service-account keys",
    "add_service_account_key": "service-account add-key",
    "revoke_service_account_key": "service-account revoke-key",
    "add_service_account_secret": "service-account add-secret",
    "get_trace": "trace",
    "add_trusted_key": "trusted-key add",
    "delete_trusted_key": "trusted-key remove",
    "get_trusted_key": "trusted-key list",
    "get_entitlement": "entitlement list",
    "get_app_version_by_id": "app versions",
    "list_own_grants": "grant list",
    "list_ssh_keys": "ssh-key list",
    "add_ssh_key": "ssh-key add",
    "remove_ssh_key": "ssh-key remove",
    "update_user": "user disable",
    "update_instance": "instance set-mode",
    "list_receipt_keys": "receipt keys",
}
CONTROLLERS = "for the controller that holds a lease; the SDK's runtime calls it"
AGENTS = "for node agents"
PROGRAMS = "for programs that watch or trust the platform: it is read by its address"
BROWSERS = "for a browser"
WITHOUT_A_COMMAND = {
    **dict.fromkeys(("locate_artifact", "certify_host", "offer_agent_key", "enrol_node"), AGENTS),
    "check_registry_token": "the guard in front of the registry asks",
    **dict.fromkeys(
        ("get_public_keys", "get_authorization_server_metadata", "is_alive", "is_ready", "read_metrics"), PROGRAMS
    ),
    **dict.fromkeys(("open_session", "get_device_request", "approve_device", "deny_device"), BROWSERS),
    **dict.fromkeys(
        (
            "claim_reconcile_lease",
            "grant_observer_access",
            "heartbeat_reconcile_lease",
            "yield_reconcile_lease",
            "report_instance",
            "report_app_usage",
            "report_member",
            "grant_operation_access",
            "end_cancelled_operation",
            "claim_operation",
            "complete_operation",
            "request_delivery",
            "fail_operation",
            "heartbeat_operation",
            "ensure_secret",
            "report_step",
            "yield_operation",
            "deliver_credential",
            "get_delivery",
            "deliver_secret",
            "unwrap_secret",
        ),
        CONTROLLERS,
    ),
}


def all_commands(group: App, *before: str) -> set[str]:
    found: set[str] = set()
    for name, command in group.resolved_commands().items():
        if not name.startswith("-"):
            below = all_commands(command, *before, name)
            found |= below or {" ".join((*before, name))}
    return found


def expected_command(method: str, path: str) -> str:
    """Name the command by the custom of the command line: noun and verb."""
    collection, *rest = path.removeprefix("/v1/").split("/")
    singular = f"{collection[:-3]}y" if collection.endswith("ies") else collection.removesuffix("s")
    noun = NOUNS.get(collection, singular)
    if not rest:
        return f"{noun} {COLLECTION_VERBS.get(method)}"
    return f"{noun} {OBJECT_VERBS.get(method) if rest[-1].startswith('{') and len(rest) == 1 else rest[-1]}"


def test_every_route_has_a_command_or_a_reason() -> None:
    commands = all_commands(app)
    routes = {
        operation["operationId"]: expected_command(method, path)
        for path, operations in json.loads(OPENAPI.read_text())["paths"].items()
        for method, operation in operations.items()
    }
    wanted = routes | NAMED_OTHERWISE
    missing = {id: command for id, command in wanted.items() if command not in commands and id not in WITHOUT_A_COMMAND}
    assert missing == {}, "add a command, or a line with the reason why there is none"


def test_the_lists_of_exceptions_name_routes_that_there_are() -> None:
    ids = {o["operationId"] for each in json.loads(OPENAPI.read_text())["paths"].values() for o in each.values()}
    assert set(NAMED_OTHERWISE) | set(WITHOUT_A_COMMAND) <= ids
    assert not set(NAMED_OTHERWISE) & set(WITHOUT_A_COMMAND)
