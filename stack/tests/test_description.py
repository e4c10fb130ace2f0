"""Settings, packs, package sources, ports, GPUs: what is read and checked before anything is started."""

from __future__ import annotations

import io
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import ValidationError
from rich.console import Console

from gpuaas_stack import image, platform_services
from gpuaas_stack.apt_sources import AptSources, read_apt_sources
from gpuaas_stack.errors import StackError
from gpuaas_stack.gpus import ensure_gpus
from gpuaas_stack.packs import find_packs
from gpuaas_stack.ports import ensure_free
from gpuaas_stack.progress import Progress
from gpuaas_stack.service import Service
from gpuaas_stack.settings import Settings


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUAAS_ENVIRONMENT", "test")
    monkeypatch.setenv("GPUAAS_APP_DIRS", "/a:/b")
    settings = Settings()
    assert settings.storage_pool == "gpuaas-test"
    assert settings.app_dirs == (Path("/a"), Path("/b"))
    with pytest.raises(ValidationError, match="GPUAAS_VAULT_TOKEN_FILE"):
        Settings(vault_addr="http://vault")
    with pytest.raises(ValidationError):
        Settings(environment="No Such Name")


def test_a_taken_port_is_said_with_the_setting_that_changes_it() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(StackError, match=rf"port {port} .* taken .*GPUAAS_API_PORT"):
            ensure_free("127.0.0.1", port, "the API", "GPUAAS_API_PORT")
    ensure_free("127.0.0.1", port, "the API", "GPUAAS_API_PORT")


PACK = """
slug: sample
manifest: manifest.yaml
bundle: [sh, -c, 'echo made from "$2" > "$1"', sh, "{output}", "{dpkg_status}"]
controller: [python3, -m, sample]
"""


def write_pack(directory: Path, text: str = PACK) -> Path:
    directory.mkdir(parents=True)
    (directory / "pack.yaml").write_text(text)
    (directory / "manifest.yaml").write_text("name: sample\n")
    return directory


def test_packs_are_found_and_bundled(tmp_path: Path) -> None:
    write_pack(tmp_path / "apps" / "sample")
    (tmp_path / "apps" / "not-a-pack").mkdir()
    (pack,) = find_packs([tmp_path / "apps"])
    assert pack.slug == "sample"
    # Programs are taken from beside this interpreter, whatever PATH says.
    assert pack.controller_argv() == [str(Path(sys.executable).parent / "python3"), "-m", "sample"]
    pack.build_bundle(tmp_path / "bundle", tmp_path / "status")
    assert (tmp_path / "bundle").read_text() == f"made from {tmp_path}/status\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PACK.replace("slug: sample", "slug: Bad Name"), "slug"),
        (PACK + "surprise: 1\n", "surprise"),
        (PACK.replace("manifest.yaml", "absent.yaml"), "absent.yaml"),
        ("[]", "cannot read"),
    ],
)
def test_a_bad_pack_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    write_pack(tmp_path / "apps" / "sample", text)
    with pytest.raises(StackError, match=reason):
        find_packs([tmp_path / "apps"])


def test_two_packs_of_one_name_are_refused(tmp_path: Path) -> None:
    write_pack(tmp_path / "a" / "one")
    write_pack(tmp_path / "b" / "two")
    with pytest.raises(StackError, match="two app packs named sample"):
        find_packs([tmp_path / "a", tmp_path / "b"])


def test_a_failed_bundle_shows_why(tmp_path: Path) -> None:
    text = PACK.replace("echo made", "echo out of luck >&2; exit 3; echo made")
    write_pack(tmp_path / "apps" / "sample", text)
    (pack,) = find_packs([tmp_path / "apps"])
    with pytest.raises(StackError, match="out of luck"):
        pack.build_bundle(tmp_path / "bundle", tmp_path / "status")


SOURCES = """
# Debian itself
Types: deb
URIs: http://debian.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://other.example/
Suites: nodistro
Components: main

Enabled: no
Types: deb
URIs: http://off.example/
Suites: bookworm
Components: main
"""
LINES = """
deb [signed-by=/k.gpg] http://debian.example/debian bookworm-security main
deb http://vendor.example/ bookworm stable
deb-src http://debian.example/debian bookworm main
# deb http://commented.example/ bookworm main
"""


def test_only_debian_s_own_sources_go_into_the_image(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "debian.sources").write_text(SOURCES)
    (tmp_path / "sources.list").write_text(LINES)
    sources = read_apt_sources("bookworm", tmp_path)
    assert ["debian.example" in stanza for stanza in sources.stanzas] == [True]
    assert sources.lines == ("deb [signed-by=/k.gpg] http://debian.example/debian bookworm-security main",)
    with pytest.raises(StackError, match="trixie"):
        read_apt_sources("trixie", tmp_path)


def test_the_image_is_known_by_its_content(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = AptSources(("a",), (), ())
    first = image.recipe_hash(sources)
    assert first == image.recipe_hash(sources)
    assert first != image.recipe_hash(AptSources(("b",), (), ()))
    monkeypatch.setattr(image, "PACKAGES", (*image.PACKAGES, "more"))
    assert first != image.recipe_hash(sources)


def test_gpus_are_stand_ins_where_there_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuaas_stack.gpus.REAL_DEVICES", str(tmp_path / "none[0-9]"))
    pattern = ensure_gpus(tmp_path / "gpus", 2)
    assert pattern == ensure_gpus(tmp_path / "gpus", 2)
    made = sorted(Path(pattern).parent.glob("nvidia[0-9]*"))
    assert [path.name for path in made] == ["nvidia0", "nvidia1"]
    assert all(stat.S_ISCHR(path.stat().st_mode) for path in made)
    monkeypatch.setattr("gpuaas_stack.gpus.REAL_DEVICES", str(tmp_path / "gpus" / "nvidia[0-9]"))
    assert ensure_gpus(tmp_path / "unused", 2) == str(tmp_path / "gpus" / "nvidia[0-9]")


def test_a_controller_gets_its_own_account_and_nothing_of_the_platform(
    new_slug: Callable[[], str], state_dir: Path
) -> None:
    settings, slug = Settings(state_dir=state_dir), new_slug()
    text = PACK.replace("slug: sample", f"slug: {slug}")
    pack = find_packs([write_pack(state_dir / "dir" / "sample", text).parent])[0]
    platform_services.write_service_account(settings, slug, "sa_1", "key")
    service = platform_services.controller_service(settings, pack)
    assert set(service.env) == {"HOME", "GPUAAS_API_URL", "GPUAAS_SERVICE_ACCOUNT_FILE", "APP_STATE_DIR"}
    account = Path(service.env["GPUAAS_SERVICE_ACCOUNT_FILE"])
    assert account.owner() == service.user
    assert account.stat().st_mode & 0o077 == 0
    assert Service.from_json(service.to_json()) == service


def test_progress_without_a_terminal_is_plain_lines_with_times() -> None:
    out = io.StringIO()
    with Progress(Console(file=out, force_terminal=False)) as progress:
        with progress.phase("first") as phase:
            phase.note = "cached"
        with pytest.raises(StackError), progress.phase("second"):
            raise StackError("no")
    lines = out.getvalue().splitlines()
    assert lines[0].split() == ["✓", "first", "0.0", "s", "cached"]
    assert lines[1].split() == ["✗", "second", "0.0", "s"]
    assert list(progress.timings) == ["first"]
