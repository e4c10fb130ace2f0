from pathlib import Path

import pytest
import yaml

from gpuaas_conformance.platform import KitError
from gpuaas_conformance.subject import AppUnderTest, read_app

MANIFEST = {
    "schema": "gpuaas.app/v1",
    "slug": "x",
    "title": "X",
    "version": "1.0.0",
    "runtime": {"name": "x", "version": "1"},
    "components": [{"key": "main", "title": "Main", "primary": True}],
    "operations": [
        {"kind": kind, "title": kind, "deadline_seconds": 60, "input_schema": {"type": "object"}}
        for kind in ("deploy", "decommission")
    ],
}


def app(directory: Path, **notes: object) -> AppUnderTest:
    (directory / "manifest.yaml").write_text(yaml.safe_dump(MANIFEST))
    pack = {"manifest": "manifest.yaml", "bundle": ["x", "{output}"], "controller": ["x", "run"]}
    (directory / "pack.yaml").write_text(yaml.safe_dump(pack))
    if notes:
        (directory / "conformance.yaml").write_text(yaml.safe_dump(notes))
    return read_app(directory, None, [])


def test_two_deploys_may_differ_only_where_the_app_says_so(tmp_path: Path) -> None:
    one, other = {"/etc/x", "/var/lib/x/job_state"}, {"/etc/x", "/var/lib/x/job_state", "/var/lib/x/job_state.old"}
    assert app(tmp_path).differences(one, other) == ["/var/lib/x/job_state.old"]
    quiet = app(tmp_path, restless=["/var/lib/x/*"])
    assert quiet.differences(one, other) == []
    assert quiet.differences(one, {*other, "/etc/y"}) == ["/etc/y"]


def test_a_note_that_the_kit_does_not_understand_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KitError, match="restless"):
        app(tmp_path, resltess=["/var/lib/x/*"])
