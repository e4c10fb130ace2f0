"""Ports of members that people reach by a tunnel."""

from gpuaas_contract.base import Resource

TUNNEL_SECONDS = 900
"""How long one access to a port serves new connections. The next connection then gets another; open ones stay."""


class MemberPort(Resource):
    """A port that an app declares for people, on one member. Opens `WS /v1/members/{member_id}/ports/{name}/stream`.

    On that stream an empty message says that no more bytes follow in its direction; the other direction goes on."""

    member_id: str
    instance_id: str
    component_key: str
    allocation_id: str
    name: str
    number: int
    description: str = ""
    through_agent: bool
    """False for an external machine, which has no agent: there is no stream, and people forward the port over SSH with
    a key of their own."""
