"""The cluster that an operation is about, as the platform describes it. Read anew each time: nothing is remembered."""

from dataclasses import dataclass

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Instance, Member, MemberStatus
from gpuaas_sdk import Machine, OperationContext, OperationFailed

from reference_app.software import Role

SOFTWARE, TOKEN = "software", "token"


@dataclass(frozen=True, slots=True)
class Cluster:
    operation: OperationContext
    instance: Instance
    controller: Member
    workers: tuple[Member, ...]
    digest: str
    inputs: JsonObject

    @classmethod
    async def read(
        cls, operation: OperationContext, *, version: str | None = None, inputs: JsonObject | None = None
    ) -> "Cluster":
        """As it is wanted; an upgrade or a configure says what is wanted from now on."""
        instance = await operation.instance()
        manifest = (
            await operation.client.app_versions.get(instance.app_slug, version or instance.versions.app)
        ).manifest
        live = [member for member in await operation.members() if member.status != MemberStatus.REMOVED]
        controllers = [member for member in live if member.component_key == Role.CONTROLLER]
        digest = next((slot.digest for slot in manifest.artifacts if slot.name == SOFTWARE), None)
        if len(controllers) != 1 or digest is None:
            raise OperationFailed("instance_incomplete", "the instance has no controller, or its app no software")
        workers = tuple(member for member in live if member.component_key == Role.WORKER)
        defaults = {key: part["default"] for key, part in manifest.inputs["properties"].items()}
        wanted = {**defaults, **(instance.inputs if inputs is None else inputs)}
        return cls(operation, instance, controllers[0], workers, digest, wanted)

    @property
    def members(self) -> tuple[Member, ...]:
        return (self.controller, *self.workers)

    def member(self, member_id: str | None) -> Member:
        for member in self.members:
            if member.id == member_id:
                return member
        raise OperationFailed("member_gone", "cannot work on the member: it is no longer part of the instance")

    def machine(self, member: Member) -> Machine:
        return self.operation.machine(member.allocation_id)

    @property
    def controller_machine(self) -> Machine:
        return self.machine(self.controller)

    def roles_on(self, allocation_id: str, *, without: str | None = None) -> list[Role]:
        return [Role(m.component_key) for m in self.members if m.allocation_id == allocation_id and m.id != without]

    def config(self, member: Member) -> JsonObject:
        machine = self.machine(member)
        shared = {"instance": self.instance.id, "port": self.inputs["port"]}
        if member.component_key == Role.CONTROLLER:
            return {**shared, "motto": self.inputs["motto"]}
        controller = self.controller_machine.address
        return {
            **shared,
            "name": machine.hostname,
            "controller": controller,
            "beat_seconds": self.inputs["beat_seconds"],
        }
