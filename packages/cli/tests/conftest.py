"""A platform of canned answers on a real port, and a home directory of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .cli_test_platform import StubPlatform, serve


@pytest.fixture
def platform() -> Iterator[StubPlatform]:
    with serve() as stub:
        yield stub


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Hide the settings of whoever runs the tests."""
    for name in ("API_URL", "TOKEN", "CONTEXT", "PROJECT", "PASSWORD", "DEBUG", "CA_FILE"):
        monkeypatch.delenv(f"GPUAAS_{name}", raising=False)
    monkeypatch.setenv("GPUAAS_CONFIG", str(tmp_path / "config.yaml"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("gpuaas_cli.output.format", "table")
    return tmp_path


@pytest.fixture
def logged_in(platform: StubPlatform, monkeypatch: pytest.MonkeyPatch) -> StubPlatform:
    monkeypatch.setenv("GPUAAS_API_URL", platform.url)
    monkeypatch.setenv("GPUAAS_TOKEN", "t0ken")
    return platform
