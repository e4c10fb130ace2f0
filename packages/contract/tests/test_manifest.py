"""The app manifest refuses what does not hang together."""

from typing import Any

import pytest
from pydantic import ValidationError

from gpuaas_contract.manifest import Manifest

GOOD: dict[str, Any] = {
    "schema": "gpuaas.app/v1",
    "slug": "echo",
    "title": "Echo",
    "version": "1.2.3",
    "runtime": {"name": "echo", "version": "7"},
    "components": [
        {"key": "head", "title": "Head", "primary": True, "may_share_machine_with": ["tail"]},
        {"key": "tail", "title": "Tail", "max": 3},
    ],
    "operations": [{"kind": "deploy", "title": "Deploy"}, {"kind": "decommission", "title": "Decommission"}],
}


def test_a_good_one() -> None:
    manifest = Manifest.model_validate(GOOD)
    assert manifest.primary.key == "head"
    assert manifest.component("tail") is not None
    assert manifest.operation("dance") is None
    # By its own words on the wire, and back.
    assert Manifest.model_validate(manifest.model_dump(mode="json", by_alias=True)) == manifest


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"slug": "Not A Name"}, "slug"),
        ({"version": "1.2"}, "version"),
        ({"colour": "red"}, "colour"),
        ({"components": []}, "components"),
        ({"components": [{"key": "a", "title": "A"}]}, "exactly one component must be primary"),
        ({"components": [GOOD["components"][0]]}, "unknown components"),
        ({"components": [GOOD["components"][1], {**GOOD["components"][1], "primary": True}]}, "keys must differ"),
        ({"operations": [{"kind": "deploy", "title": "Deploy"}]}, "decommission"),
        ({"operations": [*GOOD["operations"], {"kind": "add", "title": "A", "component": "x"}]}, "unknown component"),
        ({"modes": [{"key": "m", "title": "M", "actions": ["fly"]}]}, "unknown operations"),
    ],
)
def test_bad_ones(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        Manifest.model_validate({**GOOD, **change})
