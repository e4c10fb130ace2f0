"""Next actions after a refusal that names none itself, by its code and by the request.

An action is offered only where its route exists and the caller has a role that may call it. It follows from the path
alone, so that what does not exist and what the caller may not know of still look alike."""

import re
from collections.abc import Callable, Iterable
from enum import StrEnum

from gpuaas_contract.problems import AllowedAction, Code

MayCall = Callable[[str, str], bool]
"""Whether this caller may call the method on the path."""


class Next(StrEnum):
    REPEAT = "repeat"
    """The same request may succeed later."""
    LOG_IN = "log_in"
    SEE_ROLES = "see_roles"
    SHOW = "show"
    """The object of the request says in its own `allowed_actions` what it allows now."""
    LIST = "list"
    """The collection shows what there is, and which names are taken."""
    RELIST = "relist"
    LIST_NODES = "list_nodes"
    LIST_MACHINES = "list_machines"
    LIST_TRUSTED_KEYS = "list_trusted_keys"
    LIST_APPS = "list_apps"


AFTER: dict[Code, tuple[Next, ...]] = {
    **{code: (Next.REPEAT,) for code in Code if code.retryable},
    Code.UNAUTHENTICATED: (Next.LOG_IN,),
    Code.INVALID_CREDENTIALS: (Next.LOG_IN,),
    Code.EXPIRED_TOKEN: (Next.LOG_IN,),
    Code.INVALID_GRANT: (Next.LOG_IN,),
    Code.ACCESS_DENIED: (Next.LOG_IN,),
    Code.CSRF_INVALID: (Next.LOG_IN,),
    Code.FORBIDDEN: (Next.SEE_ROLES,),
    Code.NOT_OPERATOR: (Next.SHOW,),
    **dict.fromkeys(
        (
            Code.INVALID_STATE,
            Code.NOT_EMPTY,
            Code.REVISION_MISMATCH,
            Code.STALE_LEASE,
            Code.OPERATION_RUNNING,
            Code.ACTION_NOT_ALLOWED,
            Code.COMPONENT_LIMIT,
            Code.POLICY_NOT_MET,
            Code.ALLOCATION_IN_USE,
            Code.VOLUME_IN_USE,
            Code.SHAPE_UNSUPPORTED,
            Code.KEY_LIMIT,
            Code.ALREADY_DELIVERED,
            Code.DELIVERY_USED,
            Code.DELIVERY_EXPIRED,
        ),
        (Next.SHOW, Next.LIST),
    ),
    Code.NOT_FOUND: (Next.LIST,),
    Code.NAME_TAKEN: (Next.LIST,),
    Code.LAST_PLATFORM_ADMIN: (Next.LIST,),
    Code.CURSOR_INVALID: (Next.RELIST,),
    Code.CURSOR_EXPIRED: (Next.RELIST,),
    Code.NO_CAPACITY: (Next.LIST_NODES, Next.LIST_MACHINES),
    Code.IMAGE_UNKNOWN: (Next.LIST_NODES,),
    Code.SHAPE_TOO_LARGE: (Next.LIST_NODES,),
    Code.QUOTA_EXCEEDED: (Next.LIST_MACHINES,),
    Code.PLACEMENT_INVALID: (Next.LIST_MACHINES,),
    Code.SIGNATURE_MISSING: (Next.LIST_TRUSTED_KEYS,),
    Code.SIGNATURE_INVALID: (Next.LIST_TRUSTED_KEYS,),
    Code.INPUTS_INVALID: (Next.LIST_APPS,),
    Code.VERSION_EXISTS: (Next.LIST_APPS,),
    Code.VERSION_RETIRED: (Next.LIST_APPS,),
    Code.NOT_ENTITLED: (Next.LIST_APPS,),
}

CHANGE_THE_REQUEST = "only another request can succeed; the answer says what is wrong with this one"
NOTHING: dict[Code, str] = {
    **dict.fromkeys(
        (
            Code.INVALID_REQUEST,
            Code.METHOD_NOT_ALLOWED,
            Code.IDEMPOTENCY_CONFLICT,
            Code.SECRET_SUSPECTED,
            Code.OPERATOR_UNUSABLE,
            Code.MANIFEST_INVALID,
            Code.SCHEMA_TOO_SLOW,
            Code.DIGEST_MISMATCH,
            Code.ARTIFACT_INVALID,
            Code.TOO_LARGE,
            Code.KEY_INVALID,
            Code.WRAPPING_TOKEN_INVALID,
            Code.UNSUPPORTED_GRANT_TYPE,
            Code.UNSUPPORTED_TOKEN_TYPE,
        ),
        CHANGE_THE_REQUEST,
    ),
    Code.PASSWORD_CHANGE_REQUIRED: "its refusal always names the two ways out itself",
    Code.HTTPS_REQUIRED: "the address is wrong, not the request",
    Code.JOIN_TOKEN_INVALID: "an administrator makes another token; the node that was refused cannot",
    Code.INTERNAL: "the operator finds it by the correlation id",
    Code.AUTHORIZATION_PENDING: "an answer of OAuth: its client asks again by itself",
    Code.SLOW_DOWN: "an answer of OAuth: its client asks again by itself",
}
"""Codes after which there is nothing more to call, each with the reason."""

_FIXED = {
    Next.SEE_ROLES: ("See which roles you have", "GET", "/v1/principal"),
    Next.LOG_IN: ("Log in", "POST", "/v1/auth/login"),
    Next.LIST_NODES: ("See what the nodes offer", "GET", "/v1/nodes"),
    Next.LIST_MACHINES: ("See the machines that there are", "GET", "/v1/allocations"),
    Next.LIST_TRUSTED_KEYS: ("See which keys are trusted", "GET", "/v1/trusted-keys"),
    Next.LIST_APPS: ("See the apps and their versions", "GET", "/v1/apps"),
}
_PLAIN_PATH = re.compile(r"/v1(/[a-z0-9][A-Za-z0-9_.-]{0,99}){1,6}")
_COLLECTION = re.compile(r"/v1/[a-z][a-z-]{1,40}(?=/|$)")
_OBJECT = re.compile(r"/v1/[a-z][a-z-]{1,40}/[a-z]{2,4}_[0-9a-z]{1,60}(?=/|$)")


def actions_after(code: Code, method: str, path: str, may_call: MayCall) -> list[AllowedAction]:
    """List what the caller can call now. A path of hostile characters is never sent back."""
    return list(_offered(AFTER.get(code, ()), method, path, may_call))


def _offered(wanted: Iterable[Next], method: str, path: str, may_call: MayCall) -> Iterable[AllowedAction]:
    shown = False
    for each in wanted:
        if each is Next.LIST and shown:
            continue
        action = _action(each, method, path)
        if action is not None and action.method and action.href and may_call(action.method, action.href):
            shown = shown or each is Next.SHOW
            yield action


def _action(wanted: Next, method: str, path: str) -> AllowedAction | None:
    if wanted in _FIXED:
        title, fixed_method, href = _FIXED[wanted]
        return AllowedAction(action=wanted, title=title, method=fixed_method, href=href)
    if wanted is Next.REPEAT:
        plain = _PLAIN_PATH.fullmatch(path)
        title = "Send the same request again"
        return AllowedAction(action=wanted, title=title, method=method, href=path) if plain else None
    if wanted is Next.SHOW:
        found, title = _OBJECT.match(path), "See its state, and what it allows now"
    elif wanted is Next.LIST:
        found, title = _COLLECTION.match(path), "See what there is"
    else:
        found, title = _COLLECTION.match(path), "Read the list again from its beginning"
    return AllowedAction(action=wanted, title=title, method="GET", href=found[0]) if found else None
