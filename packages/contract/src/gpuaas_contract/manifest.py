"""The app manifest: all that the platform ever knows of an app.

These models say what the fields are. What they must say about each other is in `manifest_rules`, which the platform
asks when a version is published and the command line when a file is checked; a version that is published stays
readable when a rule is added."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from gpuaas_contract.base import Digest, JsonObject, Key, Message, Name, Request, Title
from gpuaas_contract.secrets import SecretSpec

MANIFEST_SCHEMA = "gpuaas.app/v1"
INSTANCE_KINDS = frozenset({"deploy", "start", "stop", "restart", "upgrade", "configure", "decommission"})
"""Kinds that are about the whole instance, in every app that has them."""
MEMBER_KINDS = frozenset({"add", "drain", "resume", "remove", "replace", "recover", "resize"})
"""Kinds that are about one member each. Any other kind is about a member where it names a component."""

ICON_LIMIT = 48 * 1024
Icon = Annotated[
    str,
    StringConstraints(
        max_length=ICON_LIMIT,
        pattern=r"^([a-z][a-z0-9-]{0,62}|data:image/(png|webp|svg\+xml);base64,[A-Za-z0-9+/]+={0,2})$",
    ),
]
"""The name of an icon that the reader has, or a small picture as a data URL."""
ActionName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}(:[a-z][a-z0-9_-]{0,62})?$")]
"""A kind of operation, for all components that have it or, as `kind:component`, for one."""


class RuntimeLabel(Request):
    """What the installed software is expected to report; the app's own version is another label."""

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
    """What has the smaller number comes first; equal ones stay as they are in the manifest."""
    help: Message = ""


class ActionHints(Hints):
    confirm: bool = False
    """Ask before it is done: it takes something away, or cannot be undone."""
    confirm_text: Message = ""
    """What is asked then."""


class Component(Request):
    key: Key
    title: Title
    description: Message = ""
    primary: bool = False
    min: int = Field(default=1, ge=0, le=100_000)
    max: int = Field(default=1, ge=1, le=100_000)
    may_share_machine_with: list[Key] = Field(default=[], max_length=50)
    must_share_machine_with: list[Key] = Field(default=[], max_length=50)
    """Each of its members is placed on a machine that also carries these components."""
    requires_capacity_shape: CapacityShape = CapacityShape()
    ui: Hints = Hints()


class ModeComponent(Request):
    """How many members a component has in a mode: narrower than what the component itself allows."""

    key: Key
    min: int = Field(default=0, ge=0, le=100_000)
    max: int = Field(default=100_000, ge=0, le=100_000)


class Mode(Request):
    """A way in which the app runs, for example on one machine or on many: it says which actions are valid then."""

    key: Key
    title: Title
    description: Message = ""
    actions: list[ActionName] = Field(default=[], max_length=200)
    components: list[ModeComponent] = Field(default=[], max_length=50)
    """An instance is in the first mode whose limits its members keep."""
    ui: Hints = Hints()

    def fits(self, counts: Mapping[str, int]) -> bool:
        return all(limit.min <= counts.get(limit.key, 0) <= limit.max for limit in self.components)

    def allows(self, kind: str, component: str | None = None) -> bool:
        return kind in self.actions or (component is not None and f"{kind}:{component}" in self.actions)


class Port(Request):
    """A port that a component listens on, and who connects to it."""

    name: Key
    component: Key
    number: int = Field(ge=1, le=65_535)
    protocol: Literal["tcp", "udp"] = "tcp"
    description: Message = ""
    clients: list[Key] = Field(default=[], max_length=50)
    """Components that connect to it. None: it is for people and programs of the project."""


class ArtifactSlot(Request):
    name: Key
    media_type: str = Field(max_length=200)
    digest: Digest | None = None
    """Filled in when the version is published."""


class DeclaredSecret(SecretSpec):
    """A secret that each instance has for itself. It is made when its controller first asks for it."""

    name: Key


class OperationKind(Request):
    """What can be asked of an instance or of a member. Kind and component together name it.

    A manifest that has the kind `resize` is asked before a machine under a live member gets another size; the
    platform makes the input of that one itself (`ResizeQuestion`)."""

    kind: Key
    title: Title
    description: Message = ""
    component: Key | None = None
    """The component whose members it acts on. Absent: the whole instance, or, for a kind that is about members in
    every app (`add`, `drain`, …), the members of each component that has no entry of its own."""
    input_schema: JsonObject = Field(default_factory=lambda: {"type": "object", "additionalProperties": False})
    deadline_seconds: int = Field(default=1800, ge=10, le=86_400)
    ui: ActionHints = ActionHints()

    @property
    def is_about_members(self) -> bool:
        return self.kind in MEMBER_KINDS or (self.kind not in INSTANCE_KINDS and self.component is not None)


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
    components: list[Component] = Field(min_length=1, max_length=50)
    modes: list[Mode] = Field(default=[], max_length=20)
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

    def component(self, key: str) -> Component | None:
        return next((component for component in self.components if component.key == key), None)

    def secret(self, name: str) -> DeclaredSecret | None:
        return next((secret for secret in self.secrets if secret.name == name), None)

    def operation(self, kind: str, component: str | None = None) -> OperationKind | None:
        """The entry of the component, else the one that is for all; without a component, any that has the kind."""
        found = [operation for operation in self.operations if operation.kind == kind]
        own = [operation for operation in found if operation.component == component]
        general = [operation for operation in found if operation.component is None]
        candidates = own or general or (found if component is None else [])
        return candidates[0] if candidates else None

    def mode_of(self, counts: Mapping[str, int]) -> Mode | None:
        """The mode of an instance with so many members of each component; none where the manifest has no modes."""
        return next((mode for mode in self.modes if mode.fits(counts)), None)


def manifest_schema() -> dict[str, Any]:
    """The shape of a manifest as JSON Schema 2020-12, for editors; the rules between fields are not in it."""
    schema = Manifest.model_json_schema(by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:gpuaas:app-manifest:v1",
        **schema,
        "title": "GPUaaS app manifest",
    }
