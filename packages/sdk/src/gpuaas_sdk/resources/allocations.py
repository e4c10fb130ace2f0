"""Allocations: the machines of a project, or of a tenant itself."""

from collections.abc import Sequence

from gpuaas_contract.access import CERTIFICATE_SECONDS, AccessGrant, PersonAccessRequest
from gpuaas_contract.allocations import (
    Allocation,
    AllocationBatch,
    AllocationBatchCreate,
    AllocationCreate,
    AllocationPage,
    AllocationRelease,
    AllocationResize,
    AllocationRestart,
    AllocationStatus,
    AllocationUpdate,
    Shape,
    Timeline,
)
from gpuaas_contract.volumes import VolumeAt
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes


class Allocations(ResourceRoutes):
    async def create(
        self,
        project_id: str | None,
        name: str,
        *,
        tenant_id: str | None = None,
        shape: Shape | None = None,
        image: str | None = None,
        volumes: Sequence[VolumeAt] = (),
        idempotency_key: str | None = None,
    ) -> Allocation:
        body = AllocationCreate(
            project_id=project_id,
            tenant_id=tenant_id,
            name=name,
            shape=shape or Shape(),
            image=image,
            volumes=[*volumes],
        )
        return await self._transport.post("/allocations", Allocation, body, idempotency_key=idempotency_key)

    async def create_batch(
        self,
        project_id: str | None,
        name: str,
        count: int,
        *,
        tenant_id: str | None = None,
        shape: Shape | None = None,
        image: str | None = None,
        volumes: Sequence[VolumeAt] = (),
        idempotency_key: str | None = None,
    ) -> AllocationBatch:
        """Create several alike, named `<name>-1` and so on: all of them, or none."""
        body = AllocationBatchCreate(
            project_id=project_id,
            tenant_id=tenant_id,
            name=name,
            count=count,
            shape=shape or Shape(),
            image=image,
            volumes=[*volumes],
        )
        return await self._transport.post("/allocations/batch", AllocationBatch, body, idempotency_key=idempotency_key)

    def list(
        self,
        *,
        project_id: str | None = None,
        tenant_id: str | None = None,
        status: AllocationStatus | None = None,
        name: str | None = None,
        node_id: str | None = None,
        limit: int | None = None,
    ) -> Pager[Allocation]:
        """List the allocations of a project, of a tenant itself, or all that the caller may see."""
        query = {"project_id": project_id, "tenant_id": tenant_id, "status": status, "name": name, "node_id": node_id}
        return self._list("/allocations", AllocationPage, query, limit=limit)

    async def get(self, allocation_id: str) -> Allocation:
        return await self._transport.get(f"/allocations/{allocation_id}", Allocation)

    async def timeline(
        self, allocation_id: str, *, step: str | None = None, correlation_id: str | None = None
    ) -> Timeline:
        """List the whole timeline, the steps of one kind, or those that one request caused."""
        query = {"step": step, "correlation_id": correlation_id}
        return await self._transport.get(f"/allocations/{allocation_id}/timeline", Timeline, query)

    async def update(self, allocation_id: str, *, name: str, idempotency_key: str | None = None) -> Allocation:
        """Rename the allocation; the host name of the machine stays."""
        path, body = f"/allocations/{allocation_id}", AllocationUpdate(name=name)
        return await self._transport.patch(path, Allocation, body, idempotency_key=idempotency_key)

    async def restart(
        self, allocation_id: str, *, force: bool = False, idempotency_key: str | None = None
    ) -> Allocation:
        path, body = f"/allocations/{allocation_id}/restart", AllocationRestart(force=force)
        return await self._transport.post(path, Allocation, body, idempotency_key=idempotency_key)

    async def resize(
        self,
        allocation_id: str,
        *,
        cpus: int | None = None,
        memory_mib: int | None = None,
        disk_gib: int | None = None,
        gpus: int | None = None,
        force: bool = False,
        idempotency_key: str | None = None,
    ) -> Allocation:
        """Resize the machine. Apps on it are asked first, unless `force` is given."""
        body = AllocationResize(cpus=cpus, memory_mib=memory_mib, disk_gib=disk_gib, gpus=gpus, force=force)
        path = f"/allocations/{allocation_id}/resize"
        return await self._transport.post(path, Allocation, body, idempotency_key=idempotency_key)

    async def retry(self, allocation_id: str, *, idempotency_key: str | None = None) -> Allocation:
        """Try the failed creation or release again."""
        path = f"/allocations/{allocation_id}/retry"
        return await self._transport.post(path, Allocation, idempotency_key=idempotency_key)

    async def release(
        self,
        allocation_id: str,
        *,
        force: bool = False,
        delete_volumes: bool = False,
        idempotency_key: str | None = None,
    ) -> Allocation:
        """Its volumes stay; with `delete_volumes` those go with it that no other machine has. With `force` also while
        an app uses it."""
        path = f"/allocations/{allocation_id}/release"
        body = AllocationRelease(force=force, delete_volumes=delete_volumes)
        return await self._transport.post(path, Allocation, body, idempotency_key=idempotency_key)

    async def access(
        self,
        allocation_id: str,
        public_key: str,
        *,
        lifetime_seconds: int = CERTIFICATE_SECONDS,
        administrator: bool = False,
        idempotency_key: str | None = None,
    ) -> AccessGrant:
        """A certificate for a person, for a key whose private half stays with the caller: for one's own user where one
        has a grant, otherwise (or as `administrator`) for the machine's own, by one's role."""
        path = f"/allocations/{allocation_id}/access"
        body = PersonAccessRequest(
            public_key=public_key, lifetime_seconds=lifetime_seconds, administrator=administrator
        )
        return await self._transport.post(path, AccessGrant, body, idempotency_key=idempotency_key)
