"""A manifest counts as an artifact if it has one file, of a stated kind and size. Nothing in it is believed."""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from gpuaas_contract import oci
from gpuaas_contract.problems import Code
from gpuaas_platform.core.errors import Refusal

LARGEST_FILE = 1 << 40
_MEDIA_TYPE = re.compile(oci.MEDIA_TYPE)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f/\\]")


@dataclass(frozen=True, slots=True)
class Layer:
    media_type: str
    digest: str
    size: int
    annotations: dict[str, str]


@dataclass(frozen=True, slots=True)
class ArtifactFacts:
    artifact_type: str
    media_type: str
    content_digest: str
    size: int
    file_name: str | None


def invalid(detail: str) -> Refusal:
    return Refusal(Code.ARTIFACT_INVALID, f"this is not an artifact: {detail}")


def read_layers(content: bytes) -> tuple[dict[str, Any], list[Layer]]:
    """The manifest as it is, and its layers."""
    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise invalid("its manifest is not JSON") from error
    if not isinstance(manifest, dict) or manifest.get("schemaVersion") != 2:
        raise invalid("its manifest is not one of schema version 2")
    if manifest.get("mediaType", oci.MANIFEST) != oci.MANIFEST:
        raise invalid(f"its media type is {_shown(manifest['mediaType'])}, not {oci.MANIFEST}")
    layers = manifest.get("layers")
    if not isinstance(layers, list) or not layers:
        raise invalid("its manifest has no layers")
    return manifest, [_layer(layer) for layer in layers]


def read_artifact(content: bytes) -> ArtifactFacts:
    manifest, layers = read_layers(content)
    if len(layers) != 1:
        raise invalid(f"it has {len(layers)} layers; an artifact is one file, so pack several into one tar")
    config = manifest.get("config")
    kind = manifest.get("artifactType") or (config.get("mediaType") if isinstance(config, dict) else None)
    layer = layers[0]
    return ArtifactFacts(
        artifact_type=_media_type(kind),
        media_type=layer.media_type,
        content_digest=layer.digest,
        size=layer.size,
        file_name=_file_name(layer.annotations.get(oci.TITLE)),
    )


def _layer(layer: object) -> Layer:
    if not isinstance(layer, dict):
        raise invalid("a layer is not an object")
    digest, size, annotations = layer.get("digest"), layer.get("size"), layer.get("annotations") or {}
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise invalid(f"a layer has the digest {_shown(digest)}, not a sha256 one")
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= LARGEST_FILE:
        raise invalid(f"a layer has the size {_shown(size)}")
    if not isinstance(annotations, dict) or not all(isinstance(value, str) for value in annotations.values()):
        raise invalid("the annotations of a layer are not texts")
    if layer.get("urls"):
        raise invalid("a layer is somewhere else (urls): push the file itself")
    return Layer(_media_type(layer.get("mediaType")), digest, size, annotations)


def _media_type(value: object) -> str:
    if not isinstance(value, str) or not _MEDIA_TYPE.fullmatch(value):
        raise invalid(f"{_shown(value)} is not a media type")
    return value


def _file_name(title: str | None) -> str | None:
    """The name is shown to people and may become a file's again: it must not lead anywhere."""
    if title is None:
        return None
    if not 1 <= len(title) <= 255 or title in {".", ".."} or _UNSAFE.search(title):
        raise invalid(f"the file name {_shown(title)} is not the name of one file")
    return title


def _shown(value: object) -> str:
    return repr(value)[:100].encode(errors="replace").decode()


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
