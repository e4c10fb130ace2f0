import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from gpuaas_contract.manifest import Manifest
from slurm_app import bundle
from slurm_app.controller import HANDLERS
from slurm_app.errors import RefusedError
from slurm_app.slurm.config import MAX_WORKERS
from slurm_app.slurm.roles import PACKAGES, Role

HERE = Path(__file__).parents[1]


def make_deb(directory: Path, name: str, version: str) -> Path:
    root = directory / name
    (root / "DEBIAN").mkdir(parents=True)
    (root / "usr/share").mkdir(parents=True)
    (root / "usr/share" / name).write_text(f"{name} has a file\n")
    (root / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: T <t@example.org>\nDescription: x\n"
    )
    deb = directory / f"{name}_{version.replace(':', '%3a')}_all.deb"
    subprocess.run(["dpkg-deb", "--build", str(root), str(deb)], check=True, capture_output=True)
    return deb


def read_control(deb: Path) -> str:
    return subprocess.run(["dpkg-deb", "--field", str(deb)], check=True, capture_output=True, text=True).stdout


def test_packing_is_deterministic(tmp_path: Path) -> None:
    debs = [make_deb(tmp_path, "beta", "1:2.0-1"), make_deb(tmp_path, "alpha", "1.0")]
    first, second = tmp_path / "a.tar", tmp_path / "b.tar"
    needs = {Role.WORKER: debs[1:], Role.CONTROLLER: debs}
    assert bundle.pack(debs, needs, first) == 2
    bundle.pack(reversed(debs), needs, second)
    assert bundle.digest_of(first) == bundle.digest_of(second)
    with tarfile.open(first) as tar:
        listed = tar.getnames()
        assert listed[:4] == ["names", "needs-controller", "needs-worker", "role-controller"]
        of_workers = tar.extractfile("needs-worker")
        assert of_workers is not None
        assert of_workers.read() == b"alpha\n"
        assert listed[-2:] == ["alpha_1.0_all.deb", "beta_2.0-1_all.deb"]
        assert {member.mtime for member in tar.getmembers()} == {0}
        packages = tar.extractfile("Packages")
        assert packages is not None
        index = packages.read().decode()
    assert "Filename: ./beta_2.0-1_all.deb" in index
    assert "Version: 1:2.0-1" in index
    assert index.count("SHA256: ") == 2


def test_apt_installs_from_the_unpacked_bundle(tmp_path: Path) -> None:
    debs = [make_deb(tmp_path, "beta", "1:2.0-1"), make_deb(tmp_path, "alpha", "1.0")]
    bundle.pack(debs, {}, tmp_path / "bundle.tar")
    repository, status, sources = tmp_path / "repository", tmp_path / "status", tmp_path / "sources.list"
    with tarfile.open(tmp_path / "bundle.tar") as tar:
        tar.extractall(repository)
    status.touch()
    # Copied, not used in place: apt compares size and digest of a copy with those in the index.
    sources.write_text(f"deb [trusted=yes] copy:{repository} ./\n")
    apt = bundle.Apt(tmp_path / "apt", status, sources)
    apt.run("update")
    fetched = apt.fetch(["beta"])
    assert [deb.name for deb in fetched] == ["beta_1%3a2.0-1_all.deb"]
    assert fetched[0].read_bytes() == (repository / "beta_2.0-1_all.deb").read_bytes()


def test_a_host_without_the_tool_for_the_index_is_told_which_one_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RefusedError, match="cannot find dpkg-scanpackages"):
        bundle.write_index(tmp_path)


def test_a_package_is_compressed_anew_and_nothing_else_of_it_changes(tmp_path: Path) -> None:
    deb = make_deb(tmp_path, "alpha", "1.0")
    again = tmp_path / "again.deb"
    again.write_bytes(bundle.with_quick_compression(deb.read_bytes()))
    members = subprocess.run(["ar", "t", str(again)], check=True, capture_output=True, text=True).stdout.split()
    assert members == ["debian-binary", "control.tar.zst", "data.tar.zst"]
    assert read_control(again) == read_control(deb)
    for part in ("--fsys-tarfile", "--ctrl-tarfile"):
        before, after = (
            subprocess.run(["dpkg-deb", part, str(each)], check=True, capture_output=True).stdout
            for each in (deb, again)
        )
        assert before == after
    assert bundle.with_quick_compression(again.read_bytes()) == again.read_bytes()


def test_uri_lines() -> None:
    line = "'http://deb.debian.org/debian/pool/m/munge_0.5_amd64.deb' munge_0.5_amd64.deb 97 SHA256:ab"
    assert bundle.parse_uri_line(line) == "munge_0.5_amd64.deb"


def test_the_cache_key_follows_image_and_sources() -> None:
    keys = {bundle.cache_key(b"a", b"b"), bundle.cache_key(b"a2", b"b"), bundle.cache_key(b"a", b"b2")}
    assert len(keys) == 3


def test_roles_need_no_more_than_they_should() -> None:
    worker = {name for role, names in PACKAGES.items() if role == "worker" for name in names}
    assert not [name for name in worker if name.startswith(("mariadb", "slurmctld", "slurmdbd"))]


def test_the_manifest_is_one() -> None:
    manifest = Manifest.model_validate(yaml.safe_load((HERE / "manifest.yaml").read_text()))
    assert manifest.primary.key == "controller"
    assert manifest.runtime.version == "22.05.8"
    # The manifest offers what is implemented, and nothing else.
    assert manifest.kinds == {*HANDLERS, "preflight"}
    worker = manifest.component("worker")
    assert worker is not None
    assert worker.max == MAX_WORKERS
    assert {mode.key: set(mode.actions) for mode in manifest.modes}["single_node"] == {"recover", "decommission"}
    pack = yaml.safe_load((HERE / "pack.yaml").read_text())
    assert pack["slug"] == manifest.slug
    assert (HERE / pack["manifest"]).exists()
