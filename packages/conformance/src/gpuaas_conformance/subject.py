"""The app that is tested: published, deployed, and driven by processes of its own controller."""

import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, TypeVar

import yaml
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from gpuaas_conformance.machines import Person
from gpuaas_conformance.platform import KitError
from gpuaas_conformance.proxy import FaultProxy
from gpuaas_contract.allocations import Allocation
from gpuaas_contract.instances import Instance, InstanceDeploy, InstanceStatus, Member, MemberStatus, Placement
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.operations import Operation
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.errors import NotFoundError

Found = TypeVar("Found")
PATIENCE = 180.0


@dataclass(frozen=True)
class AppUnderTest:
    directory: Path
    manifest: Manifest
    controller: list[str]
    bundle: list[str]
    given: dict[str, Path]
    restless: list[str] = field(default_factory=list)
    """Patterns of paths that its daemons write when they like: two deploys that are alike may differ there."""

    def differences(self, one: set[str], other: set[str]) -> list[str]:
        return [line for line in sorted(one ^ other) if self.is_quiet(line)]

    def is_quiet(self, path: str) -> bool:
        return not any(fnmatch(path, pattern) for pattern in self.restless)

    async def artifact(self, slot: str, person: Person, machine: Allocation, work: Path) -> Path:
        """The file that was given for it, or what the bundle command makes for machines like that one."""
        if slot in self.given:
            return self.given[slot]
        status = work / "dpkg-status"
        status.write_text(await person.run(machine.id, "cat /var/lib/dpkg/status"))
        values = {"{output}": str(work / slot), "{dpkg_status}": str(status)}
        words = [re.sub(r"\{\w+\}", lambda found: values.get(found[0], found[0]), word) for word in self.bundle]
        if any("{" in word for word in words):
            raise KitError(f"give the file of the artifact yourself: --artifact {slot}=FILE")
        await asyncio.to_thread(subprocess.run, words, cwd=self.directory, check=True)
        return work / slot


def read_app(directory: Path, controller: str | None, given: list[str]) -> AppUnderTest:
    """By its pack.yaml; `--controller` replaces the command, `--artifact` what its bundle command would make.

    What else the kit cannot know, the app may say in a conformance.yaml."""
    pack = yaml.safe_load((directory / "pack.yaml").read_text())
    manifest = Manifest.model_validate(yaml.safe_load((directory / pack["manifest"]).read_text()))
    files = {name: Path(file) for name, _, file in (text.partition("=") for text in given)}
    command = shlex.split(controller) if controller else list(pack["controller"])
    notes = directory / "conformance.yaml"
    said = yaml.safe_load(notes.read_text()) if notes.exists() else {}
    if not isinstance(said, dict) or set(said) - {"restless"}:
        raise KitError(f"{notes} may say `restless`, and nothing else")
    return AppUnderTest(directory, manifest, command, list(pack["bundle"]), files, list(said.get("restless", [])))


@dataclass
class Subject:
    admin: GpuaasClient
    proxy: FaultProxy
    app: AppUnderTest
    project_id: str
    machines: list[Allocation]
    account: Path
    log: Path
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    deployed: list[str] = field(default_factory=list)
    """Ids of the instances that the kit has made."""

    @property
    def person(self) -> Person:
        return Person(self.admin)

    # Its controller

    def start(self) -> "subprocess.Popen[bytes]":
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            # What an app keeps there is the kit's own too, and goes with it.
            "HOME": str(self.account.parent),
            "GPUAAS_API_URL": self.proxy.url,
            "GPUAAS_SERVICE_ACCOUNT_FILE": str(self.account),
        }
        with self.log.open("ab") as log:
            process = subprocess.Popen(self.app.controller, env=environment, cwd="/", stdout=log, stderr=log)
        self.processes.append(process)
        return process

    async def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(how)
                process.send_signal(signal.SIGCONT)
        for process in self.processes:
            await asyncio.to_thread(process.wait, 30)
        self.processes.clear()

    # What people do

    def placement(self) -> list[Placement]:
        """The primary component on the first machine, one of each other on the next."""
        primary = self.app.manifest.primary
        placed = [Placement(component_key=primary.key, allocation_id=self.machines[0].id)]
        for component in self.app.manifest.components:
            if not component.primary:
                together = primary.key in component.must_share_machine_with or len(self.machines) < 2
                machine = self.machines[0 if together else 1]
                placed.append(Placement(component_key=component.key, allocation_id=machine.id))
        return placed

    async def deploy(self, *, skip_preflight: bool = False) -> Instance:
        """Under the same name every time: an app may name what it keeps on a machine after its instance."""
        instance = await self.admin.instances.deploy(
            InstanceDeploy(
                project_id=self.project_id,
                app_slug=self.app.manifest.slug,
                version=self.app.manifest.version,
                name="conform",
                placement_intent=self.placement(),
                skip_preflight=skip_preflight,
            )
        )
        self.deployed.append(instance.id)
        return instance

    async def operations(self, instance: Instance) -> list[Operation]:
        found = await self.admin.operations.list(instance_id=instance.id).all()
        own = {exchange.json.get("holder") for exchange in self.proxy.exchanges if exchange.path.endswith("/claim")}
        for operation in found:
            if operation.lease is not None and operation.lease.holder not in own:
                raise KitError(
                    f"{operation.lease.holder} has claimed the kit's own {operation.kind}: it is another controller of "
                    f"{self.app.manifest.slug} that works in this project. Stop it, or disable its service account, "
                    "and run the kit again"
                )
        return found

    async def members(self, instance: Instance) -> list[Member]:
        return [m for m in await self.admin.instances.members(instance.id).all() if m.status != MemberStatus.REMOVED]

    async def until_status(self, instance: Instance, *wanted: InstanceStatus, seconds: float = PATIENCE) -> Instance:
        async def reached() -> Instance | None:
            found = await self.admin.instances.get(instance.id)
            return found if found.status in wanted else None

        return await until(reached, f"{instance.name} is {' or '.join(wanted)}", seconds)

    async def until_settled(self, instance: Instance, seconds: float = PATIENCE) -> Instance:
        """Nothing is under way any more, or it has failed already."""

        async def settled() -> Instance | None:
            found = await self.admin.instances.get(instance.id)
            if found.status == InstanceStatus.FAILED:
                return found
            over = all(operation.state.is_final for operation in await self.operations(instance))
            return found if over and found.status == InstanceStatus.RUNNING else None

        return await until(settled, f"{instance.name} runs and nothing is under way", seconds)

    async def until_ended(self, operation: Operation, seconds: float = PATIENCE) -> Operation:
        async def ended() -> Operation | None:
            found = await self.admin.operations.get(operation.id)
            return found if found.state.is_final else None

        return await until(ended, f"{operation.kind} ends", seconds)


class TookTooLongError(Exception):
    """The app did not reach in time what the check waits for: a broken rule, in the words of the check."""


async def until(condition: Callable[[], Awaitable[Found | None]], what: str, seconds: float = PATIENCE) -> Found:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        if (found := await condition()) is not None:
            return found
        if loop.time() > deadline:
            raise TookTooLongError(f"waited {seconds:.0f} s until {what}")
        await asyncio.sleep(0.2)


async def publish(admin: GpuaasClient, app: AppUnderTest, machine: Allocation, work: Path) -> None:
    """Pushed, signed, verified and promoted, as its team would do it; unless that version is there already."""
    slug = app.manifest.slug
    try:
        await admin.app_versions.get(slug, app.manifest.version)
    except NotFoundError:
        pass
    else:
        return
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    if app.manifest.artifacts:
        await admin.trusted_keys.add(f"conformance-{os.getpid()}", public, app_slug=slug)
    slots = []
    for slot in app.manifest.artifacts:
        made = await admin.artifacts.push(
            f"{slot.name}-conformance-{os.getpid()}",
            await app.artifact(slot.name, Person(admin), machine, work),
            app_slug=slug,
            media_type=slot.media_type,
            file_name=slot.name,
            sign_key=private,
        )
        await admin.artifacts.verify(made.id)
        await admin.artifacts.promote(made.id)
        slots.append(slot.model_copy(update={"digest": made.digest}))
    await admin.app_versions.publish(app.manifest.model_copy(update={"artifacts": slots}))


async def make_account(admin: GpuaasClient, project_id: str, slug: str, path: Path) -> str:
    """Return its id."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    account = await admin.service_accounts.create(
        project_id, f"{slug}-conformance-{os.getpid()}", public, app_slug=slug
    )
    content: dict[str, Any] = {"service_account_id": account.id, "private_key_pem": private, "api_url": admin.api_url}
    _write_private(path, json.dumps(content))
    return account.id


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
