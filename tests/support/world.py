"""A small world to test the app platform in: everything goes through the public API and the agent's protocol.

The node is simulated: it speaks the real protocol over a real WebSocket, but makes no machines.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import websockets
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from joserfc import jwt
from joserfc.jwk import OKPKey

from gpuaas_agent.streams import pump
from gpuaas_contract.agent_link import (
    AGENT_AUDIENCE,
    HEARTBEAT_SECONDS,
    Heartbeat,
    Hello,
    LeasesSet,
    OpenStream,
    RotateIdentity,
    SetLeases,
    SetUsers,
    SliceReport,
    StreamRefused,
    TaskMessage,
    TaskProgress,
    TaskResult,
    to_agent_adapter,
)
from gpuaas_contract.allocations import Allocation, AllocationStatus, ShapeKind
from gpuaas_contract.credentials import Credential
from gpuaas_contract.grants import Grant
from gpuaas_contract.identity import Project, ServiceAccount, Tenant
from gpuaas_contract.instances import ChosenAccess, Instance, InstanceDeploy, Placement
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.nodes import Capacity, Inventory, NodeCondition
from gpuaas_contract.volumes import Volume
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.correlation import current_correlation_id
from gpuaas_sdk.credentials import ServiceAccountCredentials
from gpuaas_sdk.retry import RetryPolicy
from tests.support.waiting import until


def make_key() -> tuple[str, str]:
    """A private and a public ed25519 key, both in PEM form."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return private, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def sign_assertion(
    private_key_pem: str, subject: str, audience: str, *, kid: str | None = None, **overrides: object
) -> str:
    now = int(time.time())
    claims = {"iss": subject, "sub": subject, "aud": audience, "iat": now, "exp": now + 30, "jti": secrets.token_hex(8)}
    key = OKPKey.import_key(private_key_pem)
    header = {"alg": "Ed25519"} if kid is None else {"alg": "Ed25519", "kid": kid}
    return jwt.encode(header, {**claims, **overrides}, key, algorithms=["Ed25519"])


MANIFEST: dict[str, Any] = {
    "schema": "gpuaas.app/v1",
    "title": "Echo",
    "version": "1.0.0",
    "runtime": {"name": "echo", "version": "7"},
    "components": [
        {"key": "head", "title": "Head", "primary": True, "may_share_machine_with": ["tail"]},
        {"key": "tail", "title": "Tail", "min": 0, "max": 3, "may_share_machine_with": ["head"]},
    ],
    "ports": [
        {"name": "voice", "component": "head", "number": 7000, "description": "Says what it hears."},
        {"name": "drum", "component": "head", "number": 7001, "protocol": "udp"},
        {"name": "inner", "component": "head", "number": 7002, "clients": ["tail"]},
        {"name": "whisper", "component": "tail", "number": 7003},
    ],
    "inputs": {
        "type": "object",
        "additionalProperties": False,
        "properties": {"greeting": {"type": "string", "default": "hello", "maxLength": 20}},
    },
    "operations": [
        {"kind": "deploy", "title": "Deploy"},
        {"kind": "add", "title": "Add a tail", "component": "tail"},
        {"kind": "decommission", "title": "Decommission"},
    ],
}


IMAGES = ["gpuaas/debian-12", "gpuaas/debian-13"]
LARGE = Capacity(cpus=64, memory_mib=262_144, disk_gib=1_000, gpus=8)


@dataclass
class SimulatedNode:
    node_id: str
    private_key_pem: str
    api_url: str
    fail_creates: bool = False
    fails: set[str] = field(default_factory=set)
    """Kinds of tasks that it reports as failed."""
    capacity: Capacity = LARGE
    images: list[str] = field(default_factory=lambda: list(IMAGES))
    """The first is its own."""
    refuses: dict[str, str] = field(default_factory=dict)
    """Login names that its machines cannot make, and why."""
    taken: list[TaskMessage] = field(default_factory=list)
    """All that it was asked to do."""
    holds: set[str] = field(default_factory=set)
    """Kinds of tasks that it takes and never finishes."""
    offers: list[ShapeKind] = field(default_factory=lambda: [ShapeKind.SLICE])
    slices: list[str] | None = None
    """Allocations whose machines it says it has, when it connects."""
    volumes: list[str] | None = None
    """Likewise."""
    conditions: list[NodeCondition] = field(default_factory=list)
    """Conditions that it reports of its host when it connects."""
    link: websockets.ClientConnection | None = None
    leases: list[SetLeases] = field(default_factory=list)
    """All that it was told of who may log in under a lease."""
    silent_about_leases: bool = False
    service_port: int | None = None
    """A port of this host to which it leads all streams; none: it refuses them."""
    streams: dict[str, OpenStream] = field(default_factory=dict)
    """All that it was asked to open."""
    carrying: set[asyncio.Task[None]] = field(default_factory=set)

    def token(self) -> str:
        return sign_assertion(self.private_key_pem, self.node_id, AGENT_AUDIENCE)

    async def offer_key(self, public_key_pem: str) -> int:
        headers = {"Authorization": f"Bearer {self.token()}", "X-Correlation-Id": current_correlation_id()}
        async with httpx.AsyncClient(base_url=self.api_url) as http:
            body = {"public_key_pem": public_key_pem}
            return (await http.post("/v1/agent/identity", json=body, headers=headers)).status_code

    async def rotate(self) -> None:
        private, public = make_key()
        assert await self.offer_key(public) == 200
        self.private_key_pem = private
        assert await self.offer_key(public) == 200

    def hello(self) -> Hello:
        inventory = Inventory(
            capacity=self.capacity,
            virtualisation="simulated",
            images=self.images,
            default_image=self.images[0],
            offers=self.offers,
            address="192.0.2.7",
        )
        reports = [SliceReport(allocation_id=id, finished=True, running=True) for id in self.slices or []]
        slices = None if self.slices is None else reports
        return Hello(
            agent_version="0",
            inventory=inventory,
            slices=slices,
            volume_ids=self.volumes,
            conditions=self.conditions,
        )

    async def run(self) -> None:
        url = self.api_url.replace("http", "ws", 1) + "/v1/agent/link"
        headers = {"Authorization": f"Bearer {self.token()}"}
        async with websockets.connect(url, additional_headers=headers) as link:
            await link.send(self.hello().model_dump_json())
            self.link = link
            beating = asyncio.create_task(self._beat(link))
            try:
                await self._listen(link)
            finally:
                beating.cancel()

    @staticmethod
    async def _beat(link: websockets.ClientConnection) -> None:
        """As a real one does it: who is silent for long is taken for offline, however slow the tests are."""
        while True:
            await link.send(Heartbeat().model_dump_json())
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _carry(self, message: OpenStream, port: int) -> None:
        """As the agent does it, but for what it leads to."""
        url = self.api_url.replace("http", "ws", 1) + f"/v1/agent/streams/{message.stream_id}"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        headers = {"Authorization": f"Bearer {self.token()}"}
        async with websockets.connect(url, additional_headers=headers, compression=None, max_queue=4) as platform:
            await pump(reader, writer, platform, half_close=message.half_close)
        writer.close()

    async def _listen(self, link: websockets.ClientConnection) -> None:
        async for text in link:
            message = to_agent_adapter.validate_json(text)
            if isinstance(message, RotateIdentity):
                await self.rotate()
            if isinstance(message, OpenStream):
                self.streams[message.stream_id] = message
                if self.service_port is None:
                    refused = StreamRefused(stream_id=message.stream_id, message="there is no machine")
                    await link.send(refused.model_dump_json())
                else:
                    self.carrying.add(asyncio.create_task(self._carry(message, self.service_port)))
            if isinstance(message, SetLeases):
                self.leases.append(message)
                if not self.silent_about_leases:
                    await link.send(LeasesSet(sequence=message.sequence).model_dump_json())
            if isinstance(message, TaskMessage):
                self.taken.append(message)
            if isinstance(message, TaskMessage) and message.spec.kind not in self.holds:
                await link.send(TaskProgress(task_id=message.task_id, step="working").model_dump_json())
                failing = self.fails | ({"create_slice"} if self.fail_creates else set())
                unmade = self.refuses if isinstance(message.spec, SetUsers) else {}
                ok = message.spec.kind not in failing and not unmade
                said = "" if ok else "; ".join(unmade.values()) or "the pool is full"
                result = TaskResult(task_id=message.task_id, ok=ok, message=said, refused=unmade)
                await link.send(result.model_dump_json())


@dataclass
class World:
    admin: GpuaasClient
    tenant: Tenant
    project: Project
    account: ServiceAccount
    controller: GpuaasClient
    app_slug: str
    node: SimulatedNode

    @classmethod
    @asynccontextmanager
    async def create(
        cls,
        admin: GpuaasClient,
        name: str,
        capacity: Capacity = LARGE,
        *,
        controller_retry: RetryPolicy | None = None,
    ) -> "AsyncIterator[World]":
        tenant = await admin.tenants.create(f"ten-{name}")
        project = await admin.projects.create(tenant.id, f"prj-{name}")
        app_slug = f"echo-{name}"
        await admin.app_versions.publish(Manifest.model_validate({**MANIFEST, "slug": app_slug}))
        await admin.entitlements.grant(tenant.id, app_slug)
        private, public = make_key()
        account = await admin.service_accounts.create(project.id, "controller", public, app_slug=app_slug)
        node_private, node_public = make_key()
        join = await admin.join_tokens.create(f"node-{name}")
        enrolment = await admin.nodes.enrol(join.token, node_public)
        node = SimulatedNode(enrolment.node_id, node_private, admin.api_url, capacity=capacity)
        link = asyncio.create_task(node.run())
        credentials = ServiceAccountCredentials(account.id, private)
        try:
            async with GpuaasClient(admin.api_url, credentials, retry=controller_retry) as controller:
                world = cls(admin, tenant, project, account, controller, app_slug, node)
                await world.until(world.node_is_ready, "the simulated node is ready")
                yield world
        finally:
            link.cancel()
            # A node that was retired or replaced in the test lost its link by itself.
            with suppress(asyncio.CancelledError, websockets.WebSocketException):
                await link

    async def node_is_ready(self) -> bool:
        return (await self.admin.nodes.get(self.node.node_id)).status == "ready"

    until = staticmethod(until)

    async def allocation(self, name: str = "one") -> Allocation:
        created = await self.admin.allocations.create(self.project.id, name)

        async def ended() -> Allocation | None:
            found = await self.admin.allocations.get(created.id)
            return found if found.status not in {AllocationStatus.REQUESTED, AllocationStatus.PROVISIONING} else None

        return await self.until(ended, f"allocation {name} is made")

    async def at_rest(self, allocation_id: str) -> Allocation:
        """Made, and nothing is being done to it."""
        moving = {AllocationStatus.REQUESTED, AllocationStatus.PROVISIONING, AllocationStatus.RELEASING}

        async def rests() -> Allocation | None:
            found = await self.admin.allocations.get(allocation_id)
            return found if found.status not in moving and found.activity is None else None

        return await self.until(rests, f"allocation {allocation_id} is at rest")

    async def grant_at_rest(self, grant_id: str) -> Grant:
        """The machine has done as it says, or could not."""

        async def rests() -> Grant | None:
            found = await self.admin.grants.get(grant_id)
            return None if found.status in {"pending", "revoking"} else found

        return await self.until(rests, f"grant {grant_id} is at rest")

    async def volume_at_rest(self, volume_id: str) -> Volume:
        """Nothing is being done to it, nor to any machine that has it."""

        async def rests() -> Volume | None:
            found = await self.admin.volumes.get(volume_id)
            states = {found.status, *(attachment.status for attachment in found.attachments)}
            return None if states & {"waiting", "attaching", "detaching", "deleting"} else found

        return await self.until(rests, f"volume {volume_id} is at rest")

    async def other_app(self) -> str:
        """Publish another app that the tenant is entitled to."""
        slug = f"app-{secrets.token_hex(4)}"
        await self.admin.app_versions.publish(Manifest.model_validate({**MANIFEST, "slug": slug}))
        await self.admin.entitlements.grant(self.tenant.id, slug)
        return slug

    async def deploy(
        self,
        *tails: Allocation,
        head: Allocation,
        name: str = "greeter",
        access: Credential | None = None,
        **inputs: object,
    ) -> Instance:
        """With the access credential `access` for its first machine, where one is given."""
        chosen = None if access is None else ChosenAccess(credential_id=access.id)
        placements = [Placement(component_key="head", allocation_id=head.id, access=chosen)]
        placements += [Placement(component_key="tail", allocation_id=tail.id) for tail in tails]
        request = InstanceDeploy(
            project_id=self.project.id, app_slug=self.app_slug, name=name, placement_intent=placements, inputs=inputs
        )
        return await self.admin.instances.deploy(request)

    async def claimable(self) -> list[str]:
        return [op.id async for op in self.controller.operations.list(project_id=self.project.id, claimable=True)]
