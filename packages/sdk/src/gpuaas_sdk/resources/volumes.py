"""Volumes of a project."""

from gpuaas_contract.volumes import Volume, VolumeAttach, VolumeCreate, VolumeDetach, VolumePage, VolumeStatus
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes


class Volumes(ResourceRoutes):
    async def create(self, project_id: str, name: str, *, size_gib: int, idempotency_key: str | None = None) -> Volume:
        body = VolumeCreate(project_id=project_id, name=name, size_gib=size_gib)
        return await self._transport.post("/volumes", Volume, body, idempotency_key=idempotency_key)

    def list(
        self,
        *,
        project_id: str | None = None,
        status: VolumeStatus | None = None,
        name: str | None = None,
        limit: int | None = None,
    ) -> Pager[Volume]:
        query = {"project_id": project_id, "status": status, "name": name}
        return self._list("/volumes", VolumePage, query, limit=limit)

    async def get(self, volume_id: str) -> Volume:
        return await self._transport.get(f"/volumes/{volume_id}", Volume)

    async def attach(
        self, volume_id: str, *, allocation_id: str, path: str, idempotency_key: str | None = None
    ) -> Volume:
        """Attach the volume to a machine on its node; a volume without a node is placed on the node of the machine."""
        body = VolumeAttach(allocation_id=allocation_id, path=path)
        return await self._transport.post(f"/volumes/{volume_id}/attach", Volume, body, idempotency_key=idempotency_key)

    async def detach(self, volume_id: str, *, allocation_id: str, idempotency_key: str | None = None) -> Volume:
        """Detach the volume; its data stay."""
        body = VolumeDetach(allocation_id=allocation_id)
        return await self._transport.post(f"/volumes/{volume_id}/detach", Volume, body, idempotency_key=idempotency_key)

    async def retry(self, volume_id: str, *, idempotency_key: str | None = None) -> Volume:
        """Try everything about the volume that failed again."""
        return await self._transport.post(f"/volumes/{volume_id}/retry", Volume, idempotency_key=idempotency_key)

    async def delete(
        self, volume_id: str, *, revision: int | None = None, idempotency_key: str | None = None
    ) -> Volume:
        """Delete the volume and its data; `deleted` when its node confirms it."""
        return await self._transport.delete(
            f"/volumes/{volume_id}", Volume, revision=revision, idempotency_key=idempotency_key
        )
