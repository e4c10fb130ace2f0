"""Requests that are repeated with their idempotency key: the kept answer is for those who may still ask."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpuaas_contract.identity import PrincipalKind
from gpuaas_contract.problems import Code
from gpuaas_platform.catalogue.service.entitlements import require_entitled
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import Caller, Permission, Right, Scope
from gpuaas_platform.identity.service.apps import require_app


async def require_again(tx: Transaction, caller: Caller, rights: Sequence[Mapping[str, Any]] | None) -> None:
    """Refuse as a first request would be refused now, where the caller has lost a right that the kept answer took."""
    if rights is None:
        _require_lasting(caller)
    for document in rights or ():
        right = Right(**{**document, "scope": Scope(**document["scope"])})
        scope = right.scope
        if right.permission is None:
            assert scope.tenant_id is not None
            assert scope.app_slug is not None
            await require_entitled(tx, caller, scope.tenant_id, scope.app_slug)
        elif scope.app_slug is not None and scope.tenant_id is None and scope.project_id is None:
            permission = Permission(right.permission)
            await require_app(tx, caller, scope.app_slug, permission, right.noun, right.identifier)
        else:
            caller.require(Permission(right.permission), scope, right.noun, right.identifier)


def _require_lasting(caller: Caller) -> None:
    """Of an answer of the version before, nobody knows which rights it took. Those of a service account never change:
    who has lost them cannot log in any more. Those of people do."""
    if caller.kind != PrincipalKind.SERVICE_ACCOUNT and not caller.is_platform_admin:
        detail = "this key was used before an upgrade of the platform: look for what it made, or take a new one"
        raise Refusal(Code.IDEMPOTENCY_CONFLICT, detail)
