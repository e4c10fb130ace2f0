"""The app manifest: all that the platform ever knows of an app."""

from typing import Literal

from pydantic import Field, model_validator

from gpuaas_contract.base import Digest, JsonObject, Key, Message, Name, Request, Title
from gpuaas_contract.operations import MEMBER_KINDS
from gpuaas_contract.secrets import SecretSpec

MANIFEST_SCHEMA = "gpuaas.app/v1"


class RuntimeLabel(Request):
    """What the installed software is expected to report; the app's own version is another label."""

    name: Name
    version: str = Field(min_length=1, max_length=64)


class CapacityShape(Request):
    cpus: int = Field(default=1, ge=1)
    memory_mib: int = Field(default=256, ge=1)
    gpus: int = Field(default=0, ge=0)


class Component(Request):
    key: Key
    title: Title
    description: Message = ""
    primary: bool = False
    min: int = Field(default=1, ge=0)
    max: int = Field(default=1, ge=1)
    may_share_machine_with: list[Key] = []
    must_share_machine_with: list[Key] = []
    """Each of its members is placed on a machine that also carries these components."""
    requires_capacity_shape: CapacityShape = CapacityShape()


class ModeLimit(Request):
    """How many members of a component an instance has in a mode; within the component's own limits."""

    component: Key
    min: int = Field(default=0, ge=0)
    max: int = Field(ge=0)


class Mode(Request):
    """A way to run the app. An instance has one, chosen at its deploy or the first that fits its placement."""

    key: Key
    title: Title
    description: Message = ""
    actions: list[Key] = []
    """The operations that can be asked for in this mode; all where empty. `decommission` always can be."""
    limits: list[ModeLimit] = []
    max_machines: int | None = Field(default=None, ge=1)
    """On how many different machines its members are."""


class ArtifactSlot(Request):
    name: Key
    media_type: str = Field(max_length=200)
    digest: Digest | None = None
    """Filled in when the version is published."""


class DeclaredSecret(SecretSpec):
    """A secret that each instance has for itself. It is made when its controller first asks for it."""

    name: Key


class OperationKind(Request):
    """A manifest that has the kind `resize` is asked before a machine under a live member gets another size; the
    platform makes the input of that one itself (`ResizeQuestion`)."""

    kind: Key
    title: Title
    description: Message = ""
    component: Key | None = None
    """The component that a member operation acts on. Absent for operations on the whole instance, and for member
    operations that all components have."""
    input_schema: JsonObject = Field(default_factory=lambda: {"type": "object", "additionalProperties": False})
    deadline_seconds: int = Field(default=1800, ge=10, le=86_400)


class Manifest(Request):
    schema_version: Literal["gpuaas.app/v1"] = Field(alias="schema")
    slug: Name
    title: Title
    description: Message = ""
    version: str = Field(pattern=r"^[0-9]+\.[0-9]+\.[0-9]+$")
    runtime: RuntimeLabel
    scopes: list[Literal["project", "tenant"]] = ["project"]
    components: list[Component] = Field(min_length=1)
    modes: list[Mode] = []
    artifacts: list[ArtifactSlot] = []
    secrets: list[DeclaredSecret] = Field(default=[], max_length=50)
    inputs: JsonObject = {"type": "object", "additionalProperties": False}
    operations: list[OperationKind] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_references(self) -> "Manifest":
        keys = [component.key for component in self.components]
        if len(set(keys)) != len(keys):
            raise ValueError("component keys must differ")
        if [component.primary for component in self.components].count(True) != 1:
            raise ValueError("exactly one component must be primary")
        for component in self.components:
            if unknown := {*component.may_share_machine_with, *component.must_share_machine_with} - set(keys):
                raise ValueError(f"component {component.key} names unknown components: {sorted(unknown)}")
        declared = [(operation.kind, operation.component) for operation in self.operations]
        if len(set(declared)) != len(declared):
            raise ValueError("an operation is declared once for each component")
        for operation in self.operations:
            if operation.component is not None and operation.component not in keys:
                raise ValueError(f"operation {operation.kind} names unknown component {operation.component}")
        kinds = {operation.kind for operation in self.operations}
        if missing := {"deploy", "decommission"} - kinds:
            raise ValueError(f"operations must include {sorted(missing)}")
        names = [secret.name for secret in self.secrets]
        if len(set(names)) != len(names):
            raise ValueError("names of secrets must differ")
        for mode in self.modes:
            if unknown := set(mode.actions) - kinds:
                raise ValueError(f"mode {mode.key} names unknown operations: {sorted(unknown)}")
            if strange := {limit.component for limit in mode.limits} - set(keys):
                raise ValueError(f"mode {mode.key} limits unknown components: {sorted(strange)}")
        return self

    @property
    def primary(self) -> Component:
        return next(component for component in self.components if component.primary)

    def component(self, key: str) -> Component | None:
        return next((component for component in self.components if component.key == key), None)

    def secret(self, name: str) -> DeclaredSecret | None:
        return next((secret for secret in self.secrets if secret.name == name), None)

    def mode(self, key: str | None) -> Mode | None:
        return next((mode for mode in self.modes if mode.key == key), None)

    def operation(self, kind: str, component: str | None = None) -> OperationKind | None:
        """As it is declared for the component, else for all or for the whole instance; for any component where none
        is named."""
        declared = {operation.component: operation for operation in self.operations if operation.kind == kind}
        found = declared.get(component) or declared.get(None)
        return found or (next(iter(declared.values()), None) if component is None else None)

    def member_operation(self, kind: str, component: str) -> OperationKind | None:
        """An operation on one member: what is declared for its component, or one of the kinds that are about members
        and declared for all of them."""
        declared = self.operation(kind, component)
        return declared if declared and (declared.component == component or kind in MEMBER_KINDS) else None

    def instance_operation(self, kind: str) -> OperationKind | None:
        declared = None if kind in MEMBER_KINDS else self.operation(kind)
        return declared if declared and declared.component is None else None

    @property
    def kinds(self) -> set[str]:
        return {operation.kind for operation in self.operations}
