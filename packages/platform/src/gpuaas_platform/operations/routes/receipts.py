"""Signed teardown receipts, and the keys that signed them."""

from fastapi import Request

from gpuaas_contract.receipts import ReceiptKeys, SignedReceipt
from gpuaas_platform.api.context import Ctx, platform_of
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.identity.rules.policy import Permission
from gpuaas_platform.operations.service import receipts

routes = Routes("receipts")


@routes.get("/app-instances/{instance_id}/receipt", Permission.INSTANCE_READ, response_model=SignedReceipt)
async def get_instance_receipt(ctx: Ctx, instance_id: str) -> SignedReceipt:
    """The receipt of an instance that has ended: signed, or `signature pending` for the seconds until it is."""
    async with ctx.read() as tx:
        return await receipts.get_receipt(tx, ctx.caller, instance_id)


@routes.get("/members/{member_id}/receipt", Permission.INSTANCE_READ, response_model=SignedReceipt)
async def get_member_receipt(ctx: Ctx, member_id: str) -> SignedReceipt:
    """The receipt of a member that was written off while its instance lives on: it says what was not verified."""
    async with ctx.read() as tx:
        return await receipts.get_member_receipt(tx, ctx.caller, member_id)


@routes.get("/receipt-keys", Permission.ANONYMOUS, response_model=ReceiptKeys)
async def list_receipt_keys(request: Request) -> ReceiptKeys:
    """The public keys of all receipts that were ever signed, oldest first. Anybody may have them."""
    return await platform_of(request).receipts.keys()
