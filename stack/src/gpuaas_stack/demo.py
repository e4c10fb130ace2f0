"""A first look at a running platform: this host enrolled, a tenant, a project with machines, and the apps that
were found, published and deployed. All of it goes through the public API, as anybody else would do it."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from gpuaas_contract.allocations import Allocation, AllocationStatus, Shape
from gpuaas_contract.catalogue import AppVersion
from gpuaas_contract.identity import Project
from gpuaas_contract.instances import Instance, InstanceDeploy, InstanceStatus, Placement
from gpuaas_contract.manifest import ArtifactSlot, Manifest
from gpuaas_contract.nodes import Node, NodeStatus
from gpuaas_contract.operations import Operation, OperationState
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import NotFoundError, VersionExistsError
from gpuaas_sdk.signing import read_private_key
from gpuaas_stack import platform_services, users
from gpuaas_stack.errors import StackError
from gpuaas_stack.packs import Demo, Pack, program
from gpuaas_stack.stack import Stack

Found = TypeVar("Found")

NAME = "demo"
NODE_NAME = "this-host"
MACHINES = {
    "demo-1": Shape(cpus=2, memory_mib=3072, disk_gib=8, gpus=2),
    "demo-2": Shape(cpus=1, memory_mib=2048, disk_gib=6, gpus=1),
    "demo-3": Shape(cpus=1, memory_mib=1024, disk_gib=4),
}
WAIT_SECONDS = 120
DEPLOY_SECONDS = 900
_UNFINISHED = {InstanceStatus.DEPLOYING}
# Its people may have taken it out of service, or its networks are being mended: it is there all the same.
_CONNECTED = {NodeStatus.READY, NodeStatus.IMPAIRED, NodeStatus.CORDONED, NodeStatus.DRAINING}
_GONE = {AllocationStatus.RELEASED, AllocationStatus.RELEASING}


@dataclass(frozen=True)
class Deployed:
    instance: Instance
    entrance: Allocation | None
    """The machine to log in to, while there is one."""
    shown: str = ""
    """The output of the command with which the app shows itself."""
    next_steps: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Seeded:
    deployed: list[Deployed]
    capacity: str


def capacity_words(nodes: Iterable[Node]) -> str:
    """Sum up in one line how much of the capacity is taken."""
    taken: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for node in nodes:
        if node.inventory is not None and node.status != NodeStatus.RETIRED:
            taken.update(node.allocated.model_dump())
            there.update(node.inventory.capacity.model_dump())
    memory = f"{taken['memory_mib'] // 1024} of {there['memory_mib'] // 1024} GiB of memory"
    disk = f"{taken['disk_gib']} of {there['disk_gib']} GiB of disk"
    return f"{taken['cpus']} of {there['cpus']} CPUs, {memory}, {disk}, {taken['gpus']} of {there['gpus']} GPUs"


def is_made(instances: Iterable[Instance]) -> bool:
    """Tell whether the demo was made before: since its first deploy has ended, the project is its people's."""
    return any(instance.status not in _UNFINISHED for instance in instances)


def new_private_key() -> str:
    key = Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def public_half(private_key_pem: str) -> str:
    key = read_private_key(private_key_pem).public_key()
    return key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


class DemoSeed:
    def __init__(self, stack: Stack, client: GpuaasClient) -> None:
        self._stack = stack
        self._settings = stack.settings
        self._progress = stack.progress
        self._client = client

    async def run(self) -> Seeded:
        """Make the demo once. Afterwards bring back what there is, whatever people made of it."""
        await self._ensure_node()
        project = await self._ensure_project()
        made = is_made(await self._client.instances.list(project_id=project.id).all())
        machines, _ = await asyncio.gather(
            self._present_machines() if made else self._ensure_machines(project),
            asyncio.gather(*(self._ensure_published(pack, project) for pack in self._stack.packs)),
        )
        deployed = await (self._bring_back(machines) if made else self._deploy(project, machines))
        return Seeded(deployed, capacity_words(await self._client.nodes.list().all()))

    async def _deploy(self, project: Project, machines: list[Allocation]) -> list[Deployed]:
        deployed = []
        for pack in self._stack.packs:
            if pack.demo is not None:
                instance, entrance = await self._ensure_deployed(pack.slug, pack.demo, project, machines)
                deployed.append(await self._look_at(pack.demo, instance, entrance, machines))
        return deployed

    async def _bring_back(self, machines: list[Allocation]) -> list[Deployed]:
        """Look at every instance that there is, and change none."""
        by_id = {machine.id: machine for machine in machines}
        demos = {(pack.slug, pack.demo.name): pack.demo for pack in self._stack.packs if pack.demo}
        found = []
        async for instance in self._client.instances.list():
            if instance.status == InstanceStatus.DECOMMISSIONED:
                continue
            entrance = by_id.get(instance.placement_intent[0].allocation_id)
            with self._progress.phase(f"{instance.app_slug} as {instance.name}") as phase:
                phase.note = str(instance.status)
                shown = ""
                demo = demos.get((instance.app_slug, instance.name))
                if demo and demo.show and entrance and instance.status == InstanceStatus.RUNNING:
                    shown = await self._show(entrance, demo.filled(demo.show, list(MACHINES)))
            found.append(Deployed(instance, entrance, shown))
        return found

    async def _show(self, machine: Allocation, words: str) -> str:
        """Run the command with which an app shows itself; what people changed may keep it from working."""
        try:
            return await self._run_on(machine, words)
        except StackError as error:
            return str(error)

    async def _ensure_node(self) -> None:
        with self._progress.phase("node enrolled") as phase:
            if not self._settings.join_token_file.exists():
                join = await self._client.join_tokens.create(NODE_NAME)
                platform_services.write_join_token(self._settings, join.token)
            await asyncio.to_thread(self._stack.start_agent)
            capacity = await self._until(self._ready_capacity, "the agent of this host has connected", "agent.log")
            phase.note = capacity

    async def _ready_capacity(self) -> str | None:
        async for node in self._client.nodes.list():
            if node.name == NODE_NAME and node.status in _CONNECTED and node.inventory:
                free = node.inventory.capacity
                taking = "" if node.status == NodeStatus.READY else f" ({node.status})"
                return f"{free.cpus} CPUs, {free.memory_mib // 1024} GiB, {free.gpus} GPUs{taking}"
            if node.name == NODE_NAME and node.status == NodeStatus.RETIRED:
                return str(node.status)
        return None

    async def _ensure_project(self) -> Project:
        with self._progress.phase("tenant and project"):
            tenants = [tenant async for tenant in self._client.tenants.list() if tenant.name == NAME]
            tenant = tenants[0] if tenants else await self._client.tenants.create(NAME, title="Demo tenant")
            async for project in self._client.projects.list(tenant_id=tenant.id):
                if project.name == NAME:
                    return project
            return await self._client.projects.create(tenant.id, NAME, title="Demo project")

    # Machines

    async def _ensure_machines(self, project: Project) -> list[Allocation]:
        with self._progress.phase("machines active") as phase:
            present = {
                allocation.name: allocation
                async for allocation in self._client.allocations.list(project_id=project.id)
                if allocation.status not in _GONE
            }
            missing = {name: shape for name, shape in MACHINES.items() if name not in present}
            create = self._client.allocations.create
            made = await asyncio.gather(*(create(project.id, name, shape=shape) for name, shape in missing.items()))
            present |= {machine.name: machine for machine in made}
            machines = await asyncio.gather(*(self._active(present[name]) for name in MACHINES))
            phase.note = ", ".join(f"{machine.name} {machine.address}" for machine in machines)
        return machines

    async def _present_machines(self) -> list[Allocation]:
        with self._progress.phase("machines") as phase:
            machines = [machine async for machine in self._client.allocations.list() if machine.status not in _GONE]
            phase.note = ", ".join(f"{machine.name} {machine.status}" for machine in machines) or "none"
        return machines

    async def _active(self, allocation: Allocation) -> Allocation:
        async def settled() -> Allocation | None:
            found = await self._client.allocations.get(allocation.id)
            waiting = {AllocationStatus.REQUESTED, AllocationStatus.PROVISIONING}
            return None if found.status in waiting else found

        try:
            found = await self._until(settled, f"the machine {allocation.name} is active", "agent.log")
        except StackError as error:
            now = await self._client.allocations.get(allocation.id)
            raise StackError(f"{error}. It is {now.status}" + (f": {now.reason}" if now.reason else "")) from None
        if found.status != AllocationStatus.ACTIVE:
            raise StackError(f"cannot use the machine {found.name}: it is {found.status}: {found.reason}")
        return found

    # Apps

    async def _ensure_published(self, pack: Pack, project: Project) -> AppVersion:
        manifest = Manifest.model_validate(yaml.safe_load(pack.manifest_path.read_text()))
        try:
            version = await self._client.app_versions.get(manifest.slug, manifest.version)
        except NotFoundError:
            version = await self._publish(pack, manifest)
        if not await self._client.entitlements.list(tenant_id=project.tenant_id, app_slug=manifest.slug).all():
            await self._client.entitlements.grant(project.tenant_id, manifest.slug)
        if not self._settings.service_account_file(pack.slug).exists():
            await self._make_service_account(pack, project)
        with self._progress.phase(f"controller of {pack.slug}"):
            await asyncio.to_thread(self._stack.start_controller, pack)
        return version

    async def _publish(self, pack: Pack, manifest: Manifest) -> AppVersion:
        image = self._stack.image
        if image is None:
            raise StackError(f"cannot build the bundle of {pack.slug} without a slice image")
        directory = platform_services.ensure_pack_dir(self._settings, pack.slug)
        bundle = directory / f"bundle-{manifest.version}"
        with self._progress.phase(f"bundle of {pack.slug}") as phase:
            await asyncio.to_thread(pack.build_bundle, bundle, image.dpkg_status)
            phase.note = f"{bundle.stat().st_size / 1e6:.0f} MB"
        with self._progress.phase(f"{pack.slug} {manifest.version} published"):
            slots = [await self._bring(pack, slot, bundle) for slot in manifest.artifacts]
            bundle.unlink()
            try:
                return await self._client.app_versions.publish(manifest.model_copy(update={"artifacts": slots}))
            except VersionExistsError:
                return await self._client.app_versions.get(manifest.slug, manifest.version)

    async def _bring(self, pack: Pack, slot: ArtifactSlot, bundle: Path) -> ArtifactSlot:
        """Push, sign with the pack's own key, verify and promote, as an app's team would."""
        name = slot.name.replace("_", "-")
        key = await self._ensure_signing_key(pack)
        made = await self._client.artifacts.push(
            name, bundle, app_slug=pack.slug, media_type=slot.media_type, file_name=slot.name, sign_key=key
        )
        await self._client.artifacts.verify(made.id)
        await self._client.artifacts.promote(made.id)
        return slot.model_copy(update={"digest": made.digest})

    async def _ensure_signing_key(self, pack: Pack) -> str:
        """Make the pack's key: the private half stays in a file of root's, and the app trusts the public one."""
        path = platform_services.ensure_pack_dir(self._settings, pack.slug) / platform_services.SIGNING_KEY
        if not path.exists():
            users.write_private(path, new_private_key())
        private = path.read_text()
        public = public_half(private)
        trusted = await self._client.trusted_keys.list(app_slug=pack.slug).all()
        if public not in [key.public_key_pem for key in trusted]:
            # A name of its own each time: an earlier key may be lost, its name is not.
            await self._client.trusted_keys.add(f"pack-{secrets.token_hex(3)}", public, app_slug=pack.slug)
        return private

    async def _make_service_account(self, pack: Pack, project: Project) -> None:
        private = new_private_key()
        public = public_half(private)
        # A name of its own each time: an earlier account's key may be lost, its name is not.
        name = f"{pack.slug}-controller-{secrets.token_hex(3)}"
        account = await self._client.service_accounts.create(project.id, name, public, app_slug=pack.slug)
        platform_services.write_service_account(self._settings, pack.slug, account.id, private)

    # Deploying

    async def _ensure_deployed(
        self, slug: str, demo: Demo, project: Project, machines: list[Allocation]
    ) -> tuple[Instance, Allocation]:
        placements = [
            Placement(component_key=component, allocation_id=machines[number - 1].id)
            for component, numbers in demo.placement.items()
            for number in numbers
        ]
        instance = await self._live_instance(project, demo.name)
        with self._progress.phase(f"{slug} deployed as {demo.name}") as phase:
            if instance is None:
                request = InstanceDeploy(
                    project_id=project.id,
                    app_slug=slug,
                    name=demo.name,
                    placement_intent=placements,
                    inputs=demo.inputs,
                )
                instance = await self._client.instances.deploy(request)
            elif instance.status == InstanceStatus.RUNNING:
                phase.note = "it was there already"
                return instance, await self._entrance(instance)
            instance = await self._watch(instance)
            # For example how long the first job took, in the app's own words.
            phase.note = next((c.message for c in instance.conditions if c.type == "Ready"), "")
        if instance.status != InstanceStatus.RUNNING:
            raise StackError(f"{demo.name} is {instance.status}: see gpuaas instance show {demo.name}")
        return instance, await self._entrance(instance)

    async def _look_at(
        self, demo: Demo, instance: Instance, entrance: Allocation, machines: list[Allocation]
    ) -> Deployed:
        names = [machine.name for machine in machines]
        shown = await self._run_on(entrance, demo.filled(demo.show, names)) if demo.show else ""
        return Deployed(instance, entrance, shown, {what: demo.filled(how, names) for what, how in demo.next.items()})

    async def _run_on(self, machine: Allocation, words: str) -> str:
        """Run a command as anybody would: with the command line, over SSH."""
        environment = {
            **os.environ,
            "GPUAAS_API_URL": self._settings.api_url,
            "GPUAAS_CA_FILE": str(self._settings.trusted_file or ""),
            "GPUAAS_TOKEN": await self._client.token(),
        }
        process = await asyncio.create_subprocess_exec(
            *[program("gpuaas"), "ssh", machine.id, "--", words],
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        if process.returncode != 0:
            raise StackError(f"cannot run {words!r} on {machine.name}: {err.decode(errors='replace').strip()[-500:]}")
        return out.decode(errors="replace").rstrip()

    async def _entrance(self, instance: Instance) -> Allocation:
        """The machine to log in to: that of the member that was placed first."""
        return await self._client.allocations.get(instance.placement_intent[0].allocation_id)

    async def _live_instance(self, project: Project, name: str) -> Instance | None:
        async for instance in self._client.instances.list(project_id=project.id):
            if instance.name == name and instance.status != InstanceStatus.DECOMMISSIONED:
                return instance
        return None

    async def _watch(self, instance: Instance) -> Instance:
        """Print every step with its time, as soon as it has ended."""
        shown: set[tuple[str, str, int]] = set()
        deadline = asyncio.get_running_loop().time() + DEPLOY_SECONDS
        while True:
            operations = await self._client.operations.list(instance_id=instance.id).all()
            for operation in operations:
                self._show_new_steps(operation, shown)
            instance = await self._client.instances.get(instance.id)
            over = all(OperationState(operation.state).is_final for operation in operations)
            if instance.status not in _UNFINISHED or over:
                return instance
            if asyncio.get_running_loop().time() > deadline:
                raise StackError(f"{instance.name} is still {instance.status} after {DEPLOY_SECONDS} s")
            await asyncio.sleep(0.2)

    def _show_new_steps(self, operation: Operation, shown: set[tuple[str, str, int]]) -> None:
        for step in operation.steps:
            key = (operation.id, step.key, step.attempt)
            if step.ended_at is None or key in shown:
                continue
            shown.add(key)
            seconds = (step.ended_at - step.started_at).total_seconds()
            mark = "✓" if step.status == "succeeded" else "✗"
            self._progress.say(
                f"   {mark} {operation.kind}: {step.title:<44} {seconds:5.1f} s  [dim]{step.message}[/dim]"
            )

    async def _until(self, condition: Callable[[], Awaitable[Found | None]], what: str, log: str) -> Found:
        deadline = asyncio.get_running_loop().time() + WAIT_SECONDS
        while True:
            if found := await condition():
                return found
            if asyncio.get_running_loop().time() > deadline:
                where = self._settings.state_dir / "logs" / log
                raise StackError(f"waited {WAIT_SECONDS} s until {what}; see {where}")
            await asyncio.sleep(0.1)


async def seed(stack: Stack) -> Seeded:
    admin = json.loads(await asyncio.to_thread(stack.settings.admin_file.read_text))
    credentials = PasswordCredentials(admin["email"], admin["password"])
    async with GpuaasClient(
        stack.settings.api_url, credentials, user_agent="gpuaas-stack", ca_file=stack.settings.trusted_file
    ) as client:
        return await DemoSeed(stack, client).run()
