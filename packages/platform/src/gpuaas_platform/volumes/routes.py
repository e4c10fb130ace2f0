"""Volumes."""

from fastapi import Response

from gpuaas_contract.volumes import Volume, VolumeAttach, VolumeCreate, VolumeDetach, VolumePage, VolumeStatus
from gpuaas_platform.api.context import Ctx, Limit
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.identity.rules.policy import Permission
from gpuaas_platform.volumes.service import requests as volumes

routes = Routes("volumes")


@routes.post("/volumes", Permission.VOLUME_CREATE, status_code=201, response_model=Volume)
async def create_volume(ctx: Ctx, body: VolumeCreate) -> Response:
    """It counts against the quota from now on, and gets its place on a node with its first machine."""
    return await ctx.mutate(lambda tx: volumes.create_volume(tx, ctx.caller, body), 201)


@routes.get("/volumes", Permission.VOLUME_READ, response_model=VolumePage)
async def list_volumes(
    ctx: Ctx,
    project_id: str | None = None,
    status: VolumeStatus | None = None,
    name: str | None = None,
    cursor: str | None = None,
    limit: Limit = 100,
) -> VolumePage:
    async with ctx.read() as tx:
        return await volumes.list_volumes(tx, ctx.caller, project_id, status, name, cursor, limit)


@routes.get("/volumes/{volume_id}", Permission.VOLUME_READ, response_model=Volume)
async def get_volume(ctx: Ctx, volume_id: str) -> Response:
    async with ctx.read() as tx:
        return ctx.show(await volumes.get_volume(tx, ctx.caller, volume_id))


@routes.post("/volumes/{volume_id}/attach", Permission.VOLUME_UPDATE, response_model=Volume)
async def attach_volume(ctx: Ctx, volume_id: str, body: VolumeAttach) -> Response:
    """To a machine on the same node, while it runs; to as many machines at once as there are."""
    return await ctx.mutate(lambda tx: volumes.attach_volume(tx, ctx.caller, volume_id, body))


@routes.post("/volumes/{volume_id}/detach", Permission.VOLUME_UPDATE, response_model=Volume)
async def detach_volume(ctx: Ctx, volume_id: str, body: VolumeDetach) -> Response:
    """Its data stay."""
    return await ctx.mutate(lambda tx: volumes.detach_volume(tx, ctx.caller, volume_id, body))


@routes.post("/volumes/{volume_id}/retry", Permission.VOLUME_UPDATE, response_model=Volume)
async def retry_volume(ctx: Ctx, volume_id: str) -> Response:
    """All that failed about it, attachments, detachments or its deletion, is tried again."""
    return await ctx.mutate(lambda tx: volumes.retry_volume(tx, ctx.caller, volume_id))


@routes.delete("/volumes/{volume_id}", Permission.VOLUME_DELETE, response_model=Volume)
async def delete_volume(ctx: Ctx, volume_id: str) -> Response:
    """With all that is on it; refused while it is attached. It is deleted when its node says that it is gone."""
    return await ctx.mutate(lambda tx: volumes.delete_volume(tx, ctx.caller, volume_id))
