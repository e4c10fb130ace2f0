"""The base of all wire models."""

import os
from typing import Annotated, Any, ClassVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from gpuaas_contract.wire import API_PREFIX

LAZY_MODELS = bool(os.environ.get("GPUAAS_LAZY_MODELS"))
"""For programs that live for a moment: build the validator of a model when it is first used, not when it is loaded."""

Name = Annotated[str, StringConstraints(pattern=r"^[a-z]([a-z0-9-]{0,46}[a-z0-9])?$")]
"""A name a person chose: usable as a host name, a shell-safe word."""

Image = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}(/[a-z0-9][a-z0-9._-]{0,62})?$")]
"""The name of a machine image on its node, for example `gpuaas/debian-12`."""

Title = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]
Message = Annotated[str, StringConstraints(max_length=4_000, pattern=r"^[^\x00]*$")]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Key = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]{0,62}$")]
"""A word from a manifest or a step list: component keys, step keys, operation kinds."""


class Request(BaseModel):
    """A body that a client sends. Unknown fields are refused: a typing error must not pass silently."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=LAZY_MODELS)

    NULL_SAYS: ClassVar[frozenset[str]] = frozenset()
    """Fields whose null is a wish of its own, unlike their absence: a client sends it."""


class Resource(BaseModel):
    """A body that the platform sends. Clients ignore fields that they do not know yet."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=LAZY_MODELS)

    ONE_TIME: ClassVar[frozenset[str]] = frozenset()
    """Fields that hold a secret which is shown once: the answer to a repeated request comes without them."""


class OwnedResource(Resource):
    id: str
    revision: int = Field(description="Grows by one with every change; the ETag of the resource.")
    created_at: AwareDatetime
    updated_at: AwareDatetime


class Page(Resource):
    """The envelope of every list; `next_cursor` is absent on the last page."""

    next_cursor: str | None = None


JsonObject = dict[str, Any]

__all__ = [
    "API_PREFIX",
    "Digest",
    "Image",
    "JsonObject",
    "Key",
    "Message",
    "Name",
    "OwnedResource",
    "Page",
    "Request",
    "Resource",
    "Title",
]
