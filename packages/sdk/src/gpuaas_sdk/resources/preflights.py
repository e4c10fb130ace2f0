"""Preflights: checks for obstacles before anything is changed."""

from gpuaas_contract.bulk import MemberOperationsCreate, MembersAdd
from gpuaas_contract.instances import InstanceDeploy
from gpuaas_contract.operations import OperationCreate
from gpuaas_contract.preflights import Preflight
from gpuaas_sdk.resources.base import ResourceRoutes
from gpuaas_sdk.transport import DEFAULT_TIMEOUT


class Preflights(ResourceRoutes):
    async def deploy(self, request: InstanceDeploy) -> Preflight:
        """Check a deploy: the same request as for `instances.deploy`."""
        return await self._transport.post("/app-instances/preflight", Preflight, request)

    async def instance(
        self, instance_id: str, request: OperationCreate | MembersAdd | MemberOperationsCreate
    ) -> Preflight:
        """Check any request on an instance."""
        return await self._transport.post(f"/app-instances/{instance_id}/preflight", Preflight, request)

    async def get(self, preflight_id: str, *, wait: float | None = None) -> Preflight:
        """Fetch a preflight. With `wait`, the answer comes after the app's own checks, or after that many seconds."""
        timeout = None if wait is None else wait + DEFAULT_TIMEOUT
        query = {"wait": None if wait is None else int(wait)}
        return await self._transport.get(f"/preflights/{preflight_id}", Preflight, query, timeout=timeout)
