"""Reading a secret: by a person whose role the app's manifest names for it, who has just given their password again.

The value passes through here for the moment of one answer, and is kept nowhere."""

from typing import Any

from gpuaas_contract.problems import Code, FieldError
from gpuaas_contract.secret_deliveries import WRAP_SECONDS
from gpuaas_contract.secrets import ReadSecret, SecretRead
from gpuaas_platform.catalogue.service.versions import manifest_of
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.instances.records import InstanceView
from gpuaas_platform.instances.service.instances import require_instance
from gpuaas_platform.secrets.storage import secrets as store
from gpuaas_platform.vault.records import SecretVersionRecord
from gpuaas_platform.vault.service import versions as secret_versions
from gpuaas_platform.vault.service.versions import SecretKeeper, path_of


async def require_reader(tx: Transaction, caller: Caller, instance_id: str, name: str) -> InstanceView:
    """Refuse who may not read it, before a password is looked at."""
    instance = await require_instance(tx, caller, instance_id, Permission.SECRET_READ)
    manifest = manifest_of(instance)
    declared = manifest.secret(name)
    if declared is None:
        known = ", ".join(secret.name for secret in manifest.secrets) or "none"
        detail = f"the app's manifest declares no secret {name!r} (there is: {known})"
        raise Refusal(Code.INVALID_REQUEST, detail, errors=[FieldError(pointer="/name", detail=detail)])
    scope = Scope(tenant_id=instance.tenant_id, project_id=instance.project_id, app_slug=instance.app_slug)
    if not caller.roles_in(scope) & {*declared.readable_by}:
        readers = f"only {' or '.join(declared.readable_by)} may" if declared.readable_by else "nobody may"
        raise Refusal(Code.FORBIDDEN, f"{caller.name} may not read the secret {name}: {readers}", denied=True)
    return instance


class ReadValue:
    """An outside effect that changes nothing: the value comes from OpenBao, between two looks at who asks."""

    def __init__(self, keeper: SecretKeeper, caller: Caller, instance_id: str, body: SecretRead) -> None:
        self._keeper = keeper
        self._caller = caller
        self._instance_id = instance_id
        self._body = body
        self._document: dict[str, Any] = {}

    async def _choose(self, tx: Transaction, number: int | None) -> SecretVersionRecord:
        name = self._body.name
        instance = await require_reader(tx, self._caller, self._instance_id, name)
        if instance.ended_at is not None:
            detail = f"cannot read the secret {name}: the instance has ended, and its secrets are destroyed"
            raise Refusal(Code.INVALID_STATE, detail)
        row = await store.get_by_name(tx, self._instance_id, name)
        if row is None:
            detail = (
                f"the secret {name} has not been made yet: the app makes it when it first needs it; try again later"
            )
            raise Refusal(Code.INVALID_STATE, detail)
        return await secret_versions.choose(tx, row.id, number, f"secret {name}")

    async def intend(self, tx: Transaction) -> None:
        chosen = await self._choose(tx, self._body.version)
        self._id, self._version = chosen.owner_id, chosen.version

    async def act(self) -> None:
        # Through a wrapping token, like a delivery: OpenBao is never asked for the value itself.
        openbao = self._keeper.openbao
        token = await openbao.wrap_secret(path_of(self._id, self._version), WRAP_SECONDS)
        document = None if token is None else await openbao.unwrap_secret(token)
        if document is None:
            detail = f"the secrets server has no version {self._version} of the secret {self._body.name} any more"
            raise Refusal(Code.INVALID_STATE, f"{detail}: read it again, and where that does not help, rotate it")
        self._document = document

    async def finish(self, tx: Transaction) -> ReadSecret:
        """Written into the audit trail before the value is handed out."""
        chosen = await self._choose(tx, self._version)
        name = self._body.name
        detail = {"name": name, "version": chosen.version, "instance": self._instance_id}
        await tx.audit("secret.read", chosen.owner_id, project_id=chosen.project_id, detail=detail)
        return ReadSecret(
            secret_id=chosen.owner_id,
            instance_id=self._instance_id,
            name=name,
            version=chosen.version,
            **self._document,
        )

    async def abandon(self, tx: Transaction) -> None:
        """Nothing was begun."""
