"""Manifest, handlers, roles and software of the app fit together."""

import tarfile
from pathlib import Path

import yaml
from gpuaas_contract.manifest import Manifest
from gpuaas_sdk.testing import defined_again

import reference_app
from reference_app.bundle import RUNTIME_VERSION, make_bundle
from reference_app.controller import HANDLERS
from reference_app.software import Role

MANIFEST = Manifest.model_validate(yaml.safe_load((Path(__file__).parents[1] / "manifest.yaml").read_text()))


def test_every_declared_operation_has_a_handler() -> None:
    assert set(HANDLERS) == MANIFEST.kinds


def test_components_are_roles() -> None:
    assert {component.key for component in MANIFEST.components} == set(Role)
    assert MANIFEST.primary.key == Role.CONTROLLER


def test_the_app_uses_the_kit_of_the_sdk() -> None:
    assert defined_again(reference_app) == []


def test_the_same_software_has_the_same_digest(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_bundle(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with tarfile.open(tmp_path / "a") as tar:
        assert tar.getnames() == ["rollcall", "VERSION"]
    assert MANIFEST.runtime.version == RUNTIME_VERSION
