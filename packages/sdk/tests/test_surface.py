"""The public names of the SDK are those in its stubs: each loads, and none loads before it is used."""

import subprocess
import sys
from functools import cached_property
from pathlib import Path

import pytest

import gpuaas_sdk
from gpuaas_sdk import GpuaasClient, resources
from gpuaas_sdk.testing import ScriptedPlatform, defined_again


@pytest.mark.parametrize("name", dir(gpuaas_sdk))
def test_every_public_name_loads(name: str) -> None:
    assert getattr(gpuaas_sdk, name).__name__ == name


def test_no_other_name_is_public() -> None:
    names: dict[str, object] = {}
    exec("from gpuaas_sdk import *", names)
    assert names.keys() - {"__builtins__"} == set(dir(gpuaas_sdk))
    with pytest.raises(AttributeError, match="NoSuchName"):
        getattr(gpuaas_sdk, "NoSuchName")  # noqa: B009 - a name that type checkers refuse


async def test_every_resource_is_an_attribute_of_the_client() -> None:
    attributes = [name for name, value in vars(GpuaasClient).items() if isinstance(value, cached_property)]
    async with ScriptedPlatform().client() as client:
        reachable = [type(getattr(client, name)).__name__ for name in attributes]
    assert sorted(reachable) == dir(resources)


@pytest.mark.parametrize(
    ("imported", "unwanted"),
    [
        ("gpuaas_sdk", ["asyncssh", "httpx", "pydantic", "websockets"]),
        ("gpuaas_sdk.client", ["asyncssh", "websockets", "gpuaas_contract.manifest", "gpuaas_sdk.resources.instances"]),
    ],
)
def test_nothing_is_loaded_before_it_is_used(imported: str, unwanted: list[str]) -> None:
    program = f"import sys, {imported}; print([name for name in {unwanted!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


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
