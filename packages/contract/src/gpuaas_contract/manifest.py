"""The app manifest: all that the platform ever knows of an app.

These models say what the fields are. What they must say about each other is in `manifest_rules`, which the platform
asks when a version is published and the command line when a file is checked; a version that is published stays
readable when a rule is added."""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from gpuaas_contract.base import Digest, JsonObject, Key, Message, Name, Request, Title
from gpuaas_contract.operations import MEMBER_KINDS
from gpuaas_contract.secrets import MOST_READERS, ReaderRole, SecretSpec

MANIFEST_SCHEMA = "gpuaas.app/v1"
ICON_LIMIT = 48 * 1024
Icon = Annotated[
    str,
    StringConstraints(
        max_length=ICON_LIMIT,
        pattern=r"^([a-z][a-z0-9-]{0,62}|data:image/(png|webp|svg\+xml);base64,[A-Za-z0-9+/]+={0,2})$",
    ),
]
"""The name of an icon that the reader has, or a small picture as a data URL."""


class RuntimeLabel(Request):
    """The version that the installed software reports; the version of the app is independent of it."""

    name: Name
    version: str = Field(min_length=1, max_length=64)


class CapacityShape(Request):
    cpus: int = Field(default=1, ge=1)
    memory_mib: int = Field(default=256, ge=1)
    gpus: int = Field(default=0, ge=0)


class Hints(Request):
    """How a person is shown something. Nothing depends on it."""

    label: Title | None = None
    """Instead of the title, where there is little room."""
    order: int = Field(default=0, ge=-1_000, le=1_000)
    """Smaller numbers come first; equal ones keep their order in the manifest."""
    help: Message = ""


class ActionHints(Hints):
    confirm: bool = False
    """Ask before it is done: it takes something away, or cannot be undone."""
    confirm_text: Message = ""
    """The question that is shown."""


class Component(Request):
    key: Key
    title: Title
    description: Message = ""
    primary: bool = False
    entrance: bool = False
    """People log in on its machines. With such a component, the people of the project are those of the instance: they
    have a user on each of its machines, and may log in where this component is."""
    min: int = Field(default=1, ge=0, le=100_000)
    max: int = Field(default=1, ge=1, le=100_000)
    may_share_machine_with: list[Key] = Field(default=[], max_length=50)
    must_share_machine_with: list[Key] = Field(default=[], max_length=50)
    """Each of its members is placed on a machine that also carries these components."""
    requires_capacity_shape: CapacityShape = CapacityShape()
    ui: Hints = Hints()


class ModeLimit(Request):
    """How many members of a component an instance has in a mode; within the component's own limits."""

    component: Key
    min: int = Field(default=0, ge=0, le=100_000)
    max: int = Field(ge=0, le=100_000)


class Mode(Request):
    """A way to run the app. An instance has one: the one that its deploy names, else `default_mode` where its placement
    fits that, else the first that it fits. It can be changed later."""

    key: Key
    title: Title
    description: Message = ""
    actions: list[Key] = Field(default=[], max_length=200)
    """The operations that can be asked for in this mode; all where empty. `decommission` always can be."""
    limits: list[ModeLimit] = Field(default=[], max_length=50)
    max_machines: int | None = Field(default=None, ge=1)
    """On how many different machines its members are."""
    ui: Hints = Hints()


class Port(Request):
    """A port that a component listens on, and who connects to it."""

    name: Key
    component: Key
    number: int = Field(ge=1, le=65_535)
    protocol: Literal["tcp", "udp"] = "tcp"
    number_input: Key | None = None
    """The input that chooses the number, an integer; `number` is what it is without one."""
    description: Message = ""
    clients: list[Key] = Field(default=[], max_length=50)
    """Components that connect to it. None: it is for people and programs of the project, who reach it by a tunnel."""


class ArtifactSlot(Request):
    name: Key
    media_type: str = Field(max_length=200)
    digest: Digest | None = None
    """Filled in when the version is published."""


class DeclaredSecret(SecretSpec):
    """A secret that each instance has for itself. It is made when its controller first asks for it."""

    name: Key
    readable_by: list[ReaderRole] = Field(default=[], max_length=MOST_READERS)
    """People with one of these roles on the instance's project may read the value, each time with their password.
    Nobody where it is empty. A role stands for itself alone: name each one."""

    @property
    def spec(self) -> SecretSpec:
        return SecretSpec(kind=self.kind, size=self.size, alphabet=self.alphabet)


class OperationKind(Request):
    """An operation that can be requested on an instance or a member. Kind and component together identify it.

    A manifest that has the kind `resize` is asked before a machine under a live member gets another size; the
    platform makes the input of that one itself (`ResizeQuestion`)."""

    kind: Key
    title: Title
    description: Message = ""
    component: Key | None = None
    """The component that a member operation acts on. Absent for operations on the whole instance, and for member
    operations that all components have."""
    input_schema: JsonObject = Field(default_factory=lambda: {"type": "object", "additionalProperties": False})
    deadline_seconds: int = Field(default=1800, ge=10, le=86_400)
    ui: ActionHints = ActionHints()


class Manifest(Request):
    schema_version: Literal["gpuaas.app/v1"] = Field(alias="schema")
    slug: Name
    title: Title
    description: Message = ""
    icon: Icon | None = None
    version: str = Field(pattern=r"^[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9}$")
    """Of the app: of its manifest and its controller."""
    runtime: RuntimeLabel
    scopes: list[Literal["project", "tenant"]] = Field(default=["project"], min_length=1, max_length=2)
    """To what an instance belongs. Only `project` works, and a new version that names `tenant` is refused; the word
    stays readable for versions that were published with it."""
    components: list[Component] = Field(min_length=1, max_length=50)
    modes: list[Mode] = Field(default=[], max_length=20)
    default_mode: Key | None = None
    """The mode of a deploy that names none, wherever its placement fits it."""
    ports: list[Port] = Field(default=[], max_length=100)
    artifacts: list[ArtifactSlot] = Field(default=[], max_length=50)
    secrets: list[DeclaredSecret] = Field(default=[], max_length=50)
    inputs: JsonObject = {"type": "object", "additionalProperties": False}
    input_hints: dict[Key, Hints] = Field(default={}, max_length=200)
    """By the name of an input."""
    operations: list[OperationKind] = Field(min_length=1, max_length=200)

    @property
    def primary(self) -> Component:
        return next(component for component in self.components if component.primary)

    @property
    def entrances(self) -> list[str]:
        """Keys of the components that people log in to."""
        return [component.key for component in self.components if component.entrance]

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


def manifest_schema() -> dict[str, Any]:
    """The shape of a manifest as JSON Schema 2020-12, for editors; the rules between fields are not in it."""
    schema = Manifest.model_json_schema(by_alias=True)
    # What is refused is not offered.
    schema["properties"]["scopes"] |= {"items": {"type": "string", "enum": ["project"]}, "maxItems": 1}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:gpuaas:app-manifest:v1",
        **schema,
        "title": "GPUaaS app manifest",
    }
