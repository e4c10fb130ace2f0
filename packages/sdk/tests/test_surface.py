"""What the SDK promises to have, and that none of it is broken by the lazy imports."""

from pathlib import Path

import pytest

import gpuaas_sdk
from gpuaas_sdk.testing import defined_again


def test_the_public_names_are_those_that_are_listed() -> None:
    assert sorted(gpuaas_sdk.__all__) == sorted(gpuaas_sdk._MODULE_OF)
    for name in gpuaas_sdk.__all__:
        assert getattr(gpuaas_sdk, name).__name__ == name


def test_an_app_that_defines_what_the_sdk_has_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "greedy_app" / "deep"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "phases.py").write_text(
        "from gpuaas_sdk import on_each\n\nclass Phase: ...\n\nasync def run_phases(): ...\n\ndef other(): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import greedy_app  # type: ignore[import-not-found]

    assert defined_again(greedy_app) == ["greedy_app.deep.phases.Phase", "greedy_app.deep.phases.run_phases"]
