"""`gpuaas app bundle-packages`: without a platform, and what it says to what it cannot use."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

GPUAAS = Path(sys.executable).parent / "gpuaas"
DPKG = "Package: dpkg\nStatus: install ok installed\nVersion: 1.21\nArchitecture: all\nMaintainer: T\nDescription: x\n"


def bundle(cwd: Path, *words: str, status: str | None = DPKG, stdin: str = "") -> subprocess.CompletedProcess[str]:
    if status is not None:
        (cwd / "status").write_text(status)
    environment = {**os.environ, "GPUAAS_BUNDLE_CACHE": str(cwd / "cache"), "COLUMNS": "200"}
    places = [] if "--dpkg-status" in words else ["--dpkg-status", "status"]
    command = [str(GPUAAS), "app", "bundle-packages", *words, *places, "--output-file", "out.tar", "-o", "json"]
    return subprocess.run(command, cwd=cwd, env=environment, input=stdin, capture_output=True, text=True, check=False)


def write_kept(cwd: Path, groups: dict[str, list[str]]) -> None:
    """A bundle in the cache, as if the archive had been asked before."""
    from gpuaas_sdk.bundles import building

    root = cwd / "small"
    (root / "DEBIAN").mkdir(parents=True)
    control = "Package: small\nVersion: 1\nArchitecture: all\nMaintainer: T <t@example.org>\nDescription: x\n"
    (root / "DEBIAN/control").write_text(control)
    deb = cwd / "small_1_all.deb"
    subprocess.run(["dpkg-deb", "--build", root, deb], check=True, capture_output=True)
    key = building.cache_key(DPKG.encode(), building.find_sources().read_bytes(), groups)
    (cwd / "cache").mkdir()
    building.pack([deb], groups, {group: [deb] for group in groups}, cwd / "cache" / f"{key}.tar")


@pytest.mark.parametrize(("places", "stdin"), [([], ""), (["--dpkg-status", "/dev/stdin"], DPKG)])
def test_a_bundle_of_groups_is_written_and_its_digest_said(tmp_path: Path, places: list[str], stdin: str) -> None:
    write_kept(tmp_path, {"packages": ["small"], "tail": ["small", "libsmall+1"]})
    done = bundle(tmp_path, "small", "--group", "tail=small,libsmall+1", *places, stdin=stdin)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    digest = subprocess.run(["sha256sum", tmp_path / "out.tar"], capture_output=True, text=True, check=True).stdout
    assert (said["digest"], said["packages"]) == (f"sha256:{digest.split()[0]}", 1)
    assert said["groups"] == {"packages": ["small"], "tail": ["small", "libsmall+1"]}


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        ((), DPKG, "no package given"),
        (("alpha;reboot",), DPKG, "'alpha;reboot' is not the name of a Debian package"),
        (("--group", "tail"), DPKG, "cannot read --group 'tail'"),
        (("--group", "tail="), DPKG, "cannot read --group 'tail='"),
        (("--group", "tail=a,,b"), DPKG, "'' is not the name of a Debian package"),
        (("--group", "Ta il=aa"), DPKG, "'Ta il' is not the name of a group"),
        (("--group", "tail=aa", "--group", "tail=bb"), DPKG, "the group tail is there already"),
        (("alpha",), "", "is not the dpkg status of a machine"),
        (("alpha",), "<html>log in first</html>", "is not the dpkg status of a machine"),
        (("alpha",), None, "cannot read the dpkg status status: No such file"),
    ],
)
def test_what_cannot_be_used_is_said_and_nothing_is_written(
    tmp_path: Path, words: tuple[str, ...], status: str | None, sentence: str
) -> None:
    refused = bundle(tmp_path, *words, status=status)
    assert (refused.returncode, sentence in refused.stderr) == (2, True), refused
    assert "Traceback" not in refused.stderr
    assert not (tmp_path / "out.tar").exists()
