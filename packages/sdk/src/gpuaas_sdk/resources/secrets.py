"""Run-time secrets of app instances, and the unwrapping of what was delivered."""

from pydantic import SecretStr

from gpuaas_contract.secret_deliveries import SecretDelivery, SecretDeliveryRequest, UnwrappedSecret, UnwrapRequest
from gpuaas_contract.secrets import ReadSecret, Secret, SecretEnsure, SecretPage, SecretRead, SecretSpec
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes
from gpuaas_sdk.retry import NO_RETRY
from gpuaas_sdk.secret_value import SecretValue
from gpuaas_sdk.transport import encode_body, parse


class Secrets(ResourceRoutes):
    def list(self, instance_id: str, *, limit: int | None = None) -> Pager[Secret]:
        return self._list(f"/app-instances/{instance_id}/secrets", SecretPage, limit=limit)

    async def get(self, secret_id: str) -> Secret:
        return await self._transport.get(f"/secrets/{secret_id}", Secret)

    async def ensure(self, operation_id: str, fencing_token: int, name: str, spec: SecretSpec | None = None) -> Secret:
        """Ensure that the operation's instance has a secret of that name. The answer does not contain its value."""
        body = SecretEnsure(fencing_token=fencing_token, name=name, spec=spec)
        return await self._transport.post(f"/operations/{operation_id}/secrets", Secret, body)

    async def rotate(self, secret_id: str, *, revision: int | None = None) -> Secret:
        return await self._transport.post(f"/secrets/{secret_id}/rotate", Secret, revision=revision)

    async def read(self, instance_id: str, name: str, password: str, *, version: int | None = None) -> ReadSecret:
        """Read the value as a person whom the app's manifest lets, with the password of that person. The value is shown
        once, so a request without an answer is not repeated automatically."""
        body = SecretRead(name=name, version=version, password=SecretStr(password))
        response = await self._transport.send(
            "POST",
            f"/app-instances/{instance_id}/secrets/read",
            headers={"Content-Type": "application/json"},
            content=encode_body(body),
            retry=NO_RETRY,
        )
        return parse(ReadSecret, response)

    async def deliver(
        self,
        secret_id: str,
        operation_id: str,
        fencing_token: int,
        *,
        version: int | None = None,
        idempotency_key: str | None = None,
    ) -> SecretDelivery:
        """Deliver a wrapping token to the lease holder; the runtime's `secret` does this and unwraps it."""
        body = SecretDeliveryRequest(operation_id=operation_id, fencing_token=fencing_token, version=version)
        path = f"/secrets/{secret_id}/deliveries"
        return await self._transport.post(path, SecretDelivery, body, idempotency_key=idempotency_key)


class SecretDeliveries(ResourceRoutes):
    async def unwrap(self, secret_delivery_id: str, wrapping_token: str) -> SecretValue:
        """Unwrap a delivered secret. This works once, so a request without an answer is not repeated automatically."""
        body = UnwrapRequest(wrapping_token=SecretStr(wrapping_token))
        response = await self._transport.send(
            "POST",
            f"/secret-deliveries/{secret_delivery_id}/unwrap",
            headers={"Content-Type": "application/json"},
            content=encode_body(body),
            retry=NO_RETRY,
        )
        return SecretValue.from_answer(parse(UnwrappedSecret, response))
