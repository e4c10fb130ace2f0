"""Manifests that count as an artifact: nothing in them is believed."""

import json
from typing import Any

import pytest

from gpuaas_contract import oci
from gpuaas_contract.problems import Code
from gpuaas_platform.artifacts.rules.oci import LARGEST_FILE, digest_of, read_artifact
from gpuaas_platform.core.errors import Refusal

DIGEST = "sha256:" + "a" * 64
LAYER: dict[str, Any] = {
    "mediaType": oci.FILE,
    "digest": DIGEST,
    "size": 7,
    "annotations": {oci.TITLE: "packages.tar"},
}
MANIFEST: dict[str, Any] = {
    "schemaVersion": 2,
    "mediaType": oci.MANIFEST,
    "artifactType": oci.FILE_ARTIFACT,
    "layers": [LAYER],
}


def layer(**changes: Any) -> dict[str, Any]:
    return {"layers": [{**LAYER, **changes}]}


def test_the_facts_of_an_artifact() -> None:
    facts = read_artifact(json.dumps(MANIFEST).encode())
    assert (facts.artifact_type, facts.media_type) == (oci.FILE_ARTIFACT, oci.FILE)
    assert (facts.content_digest, facts.size, facts.file_name) == (DIGEST, 7, "packages.tar")


@pytest.mark.parametrize(
    "change",
    [
        {"mediaType": oci.MANIFEST},
        {"artifactType": None, "config": {"mediaType": oci.FILE_ARTIFACT}},
        layer(size=0),
        layer(size=LARGEST_FILE),
        layer(annotations=None),
        layer(annotations={oci.TITLE: "ä b.tar"}),
    ],
)
def test_what_is_taken(change: dict[str, Any]) -> None:
    assert read_artifact(json.dumps({**MANIFEST, **change}).encode()).content_digest == DIGEST


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"schemaVersion": 1}, "schema version 2"),
        ({"mediaType": "text/html"}, "its media type is 'text/html'"),
        ({"layers": []}, "no layers"),
        ({"layers": "x"}, "no layers"),
        ({"layers": ["x"]}, "a layer is not an object"),
        ({"layers": [LAYER, LAYER]}, "it has 2 layers"),
        ({"artifactType": None}, "None is not a media type"),
        ({"artifactType": None, "config": "x"}, "None is not a media type"),
        ({"artifactType": "a/b\n"}, "is not a media type"),
        (layer(mediaType="file"), "'file' is not a media type"),
        (layer(digest="sha256:short"), "not a sha256 one"),
        (layer(digest=DIGEST + "\n"), "not a sha256 one"),
        (layer(digest=7), "not a sha256 one"),
        (layer(size=-1), "has the size -1"),
        (layer(size=LARGEST_FILE + 1), "has the size"),
        (layer(size=True), "has the size True"),
        (layer(size="7"), "has the size '7'"),
        (layer(annotations={"a": 1}), "annotations of a layer are not texts"),
        (layer(annotations=["a"]), "annotations of a layer are not texts"),
        (layer(urls=["http://elsewhere"]), "push the file itself"),
        *(
            (layer(annotations={oci.TITLE: name}), "not the name of one file")
            for name in ("", ".", "..", "a/b", "a\\b", "a\nb", "a\0", "x" * 256)
        ),
    ],
)
def test_what_is_refused(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Refusal) as refused:
        read_artifact(json.dumps({**MANIFEST, **change}).encode())
    assert refused.value.code == Code.ARTIFACT_INVALID
    assert complaint in refused.value.detail


@pytest.mark.parametrize("content", [b"", b"no json", b"[]", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_manifest_at_all(content: bytes) -> None:
    with pytest.raises(Refusal, match="its manifest is not"):
        read_artifact(content)


def test_an_answer_is_not_as_large_as_the_nonsense() -> None:
    with pytest.raises(Refusal) as refused:
        read_artifact(json.dumps({**MANIFEST, **layer(digest="x" * 100_000)}).encode())
    assert len(refused.value.detail) < 300


def test_a_digest() -> None:
    assert digest_of(oci.EMPTY_CONTENT) == oci.EMPTY_DIGEST
