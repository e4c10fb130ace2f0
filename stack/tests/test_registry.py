"""The embedded registry for real: who has no token is kept out, garbage is collected while it only reads."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
from tests.support.certificates import certificate
from tests.support.waiting import wait_until

from gpuaas_stack import users
from gpuaas_stack.registry import BINARY, Registry
from gpuaas_stack.registry_guard import may_write, to_drop
from gpuaas_stack.supervision import Supervision


def test_registry(supervision: Supervision, state_dir: Path, free_port: Callable[[], int]) -> None:
    registry = Registry(state_dir / "registry", free_port(), "http://platform.test")
    users.ensure_users()
    registry.trust(certificate())
    supervision.ensure_running()
    for read_only in (False, True, False):
        registry.prepare(read_only=read_only)
        supervision.ensure_service(registry.service(read_only=read_only))
        supervision.wait_ready("registry")
        with httpx.Client(base_url=f"http://127.0.0.1:{registry.port}/v2/", trust_env=False) as http:
            answer = http.get("")
            assert answer.status_code == 401
            assert 'realm="http://platform.test/v1/registry/token"' in answer.headers["www-authenticate"]
            assert http.post("apps/one/two/blobs/uploads/").status_code in {401, 405}
        if read_only:
            assert registry.collect_garbage()
    for private in (registry.certificates, registry.directory / "config.yml", registry.directory / "secret"):
        assert private.stat().st_mode & 0o077 == 0


def _runs(registry: Registry, config: str) -> bool:
    """Whether a registry that serves with this configuration is up."""
    wanted = f"serve\0{registry.directory / config}\0".encode()
    found = False
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found = found or (process.read_bytes().startswith(BINARY.encode()) and wanted in process.read_bytes())
    return found


def _upload(registry: Registry, name: str, size: int) -> Path:
    directory = registry.data / "docker/registry/v2/repositories/apps/one/two/_uploads" / name
    directory.mkdir(parents=True)
    with (directory / "data").open("wb") as file:
        file.truncate(size)
    subprocess.run(["chown", "-R", f"{users.REGISTRY}:", str(registry.data / "docker")], check=True)
    return directory


def test_what_is_too_large_is_cut_and_below_the_reserve_it_only_reads(
    supervision: Supervision, state_dir: Path, free_port: Callable[[], int]
) -> None:
    """The sizes are those of sparse files: no disk is filled for this."""
    port, directory = free_port(), state_dir / "registry"
    registry = Registry(directory, port, "http://platform.test", reserve_gib=0, largest_gib=1)
    users.ensure_users()
    registry.trust(certificate())
    supervision.ensure_running()

    def start(registry: Registry) -> None:
        registry.prepare(read_only=False)
        supervision.ensure_service(registry.service())
        supervision.wait_ready("registry")

    start(registry)
    fine, large = _upload(registry, "fine", 1 << 30), _upload(registry, "large", (1 << 30) + 1)
    wait_until(lambda: not large.exists(), "the upload that is too large is dropped")
    assert fine.exists()
    wait_until(lambda: _runs(registry, "config.yml"), "it takes pushes again")
    assert not _runs(registry, "read-only.yml")
    start(Registry(directory, port, "http://platform.test", reserve_gib=1_000_000))
    wait_until(lambda: _runs(registry, "read-only.yml"), "it only reads")
    assert not _runs(registry, "config.yml")
    wait_until(lambda: not fine.exists(), "what nobody has finished makes room")
    start(registry)
    wait_until(lambda: _runs(registry, "config.yml"), "there is room again")
    assert not _runs(registry, "read-only.yml")


def test_what_the_guard_decides() -> None:
    found = [(Path("small"), 5), (Path("large"), 50)]
    assert to_drop(found, free=100, reserve=100, largest=50) == []
    assert to_drop(found, free=100, reserve=100, largest=49) == [Path("large")]
    assert to_drop(found, free=99, reserve=100, largest=50) == [Path("small"), Path("large")]
    assert [may_write(free, 100, writable=True) for free in (99, 100)] == [False, True]
    # Not to and fro around the limit.
    assert [may_write(free, 100, writable=False) for free in (100, 104, 105)] == [False, False, True]
