"""Nodes and the tokens that enrol them."""

from gpuaas_contract.nodes import Enrolment, EnrolRequest, JoinToken, JoinTokenCreate, Node, NodePage
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes
from gpuaas_sdk.transport import encode_body, parse


class JoinTokens(ResourceRoutes):
    async def create(self, node_name: str, *, idempotency_key: str | None = None) -> JoinToken:
        body = JoinTokenCreate(node_name=node_name)
        return await self._transport.post("/join-tokens", JoinToken, body, idempotency_key=idempotency_key)


class Nodes(ResourceRoutes):
    def list(self, *, limit: int | None = None) -> Pager[Node]:
        return self._list("/nodes", NodePage, limit=limit)

    async def get(self, node_id: str) -> Node:
        return await self._transport.get(f"/nodes/{node_id}", Node)

    async def enrol(self, join_token: str, public_key_pem: str) -> Enrolment:
        """Enrol a node. Needs no login: the join token in the body is checked."""
        body = EnrolRequest(join_token=join_token, public_key_pem=public_key_pem)
        response = await self._transport.send(
            "POST",
            "/nodes/enrol",
            headers={"Content-Type": "application/json"},
            content=encode_body(body),
            authenticated=False,
        )
        return parse(Enrolment, response)

    async def _change(self, node_id: str, what: str, idempotency_key: str | None) -> Node:
        return await self._transport.post(f"/nodes/{node_id}/{what}", Node, idempotency_key=idempotency_key)

    async def cordon(self, node_id: str, *, idempotency_key: str | None = None) -> Node:
        """Place no new allocations on the node."""
        return await self._change(node_id, "cordon", idempotency_key)

    async def uncordon(self, node_id: str, *, idempotency_key: str | None = None) -> Node:
        return await self._change(node_id, "uncordon", idempotency_key)

    async def drain(self, node_id: str, *, idempotency_key: str | None = None) -> Node:
        """Place no new allocations on the node, and tell the owners of its machines to move."""
        return await self._change(node_id, "drain", idempotency_key)

    async def retire(self, node_id: str, *, idempotency_key: str | None = None) -> Node:
        """Retire an empty node for good."""
        return await self._change(node_id, "retire", idempotency_key)

    async def revoke_identity(self, node_id: str, *, idempotency_key: str | None = None) -> Node:
        """Revoke its identity; the agent is disconnected at once."""
        return await self._change(node_id, "revoke-identity", idempotency_key)

    async def rotate_identity(self, node_id: str, *, idempotency_key: str | None = None) -> Node:
        """Let its agent make a new key."""
        return await self._change(node_id, "rotate-identity", idempotency_key)
