"""Signed teardown receipts."""

from gpuaas_contract.receipts import ReceiptKeys, SignedReceipt
from gpuaas_sdk.resources.base import ResourceRoutes
from gpuaas_sdk.transport import parse


class Receipts(ResourceRoutes):
    async def get(self, instance_id: str) -> SignedReceipt:
        """Fetch the receipt of an instance that has ended; `gpuaas_sdk.signed_receipts` writes and checks files."""
        return await self._transport.get(f"/app-instances/{instance_id}/receipt", SignedReceipt)

    async def of_member(self, member_id: str) -> SignedReceipt:
        """Fetch the receipt of a member that was written off while its instance lives on."""
        return await self._transport.get(f"/members/{member_id}/receipt", SignedReceipt)

    async def keys(self) -> ReceiptKeys:
        """Fetch the public keys of all receipts that were ever signed, oldest first. It needs no log-in."""
        return parse(ReceiptKeys, await self._transport.send("GET", "/receipt-keys", authenticated=False))
