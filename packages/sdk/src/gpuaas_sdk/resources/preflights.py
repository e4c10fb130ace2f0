"""Preflights: what stands in the way, before anything is changed."""

from gpuaas_contract.bulk import MemberOperationsCreate, MembersAdd
from gpuaas_contract.instances import InstanceDeploy
from gpuaas_contract.operations import OperationCreate
from gpuaas_contract.preflights import Preflight
from gpuaas_sdk.resources.base import ResourceRoutes
from gpuaas_sdk.transport import DEFAULT_TIMEOUT


class Preflights(ResourceRoutes):
    async def deploy(self, request: InstanceDeploy) -> Preflight:
        """Of a deploy: the same request as for `instances.deploy`."""
        return await self._transport.post("/app-instances/preflight", Preflight, request)

    async def instance(
        self, instance_id: str, request: OperationCreate | MembersAdd | MemberOperationsCreate
    ) -> Preflight:
        """Of a request on an instance, whichever of them it is."""
        return await self._transport.post(f"/app-instances/{instance_id}/preflight", Preflight, request)

    async def get(self, preflight_id: str, *, wait: float | None = None) -> Preflight:
        """With `wait`, the platform answers when the app's own checks are done, too, or after that many seconds."""
        timeout = None if wait is None else wait + DEFAULT_TIMEOUT
        query = {"wait": None if wait is None else int(wait)}
        return await self._transport.get(f"/preflights/{preflight_id}", Preflight, query, timeout=timeout)
