"""Bundles of Debian packages, made from small archives in a directory: no network is needed."""

import re
import subprocess
import tarfile
from pathlib import Path

import pytest

from gpuaas_sdk import (
    Belongings,
    BundleError,
    CommandResult,
    DebianPackages,
    MachineRecord,
    OperationFailed,
    make_package_bundle,
)
from gpuaas_sdk.bundles import building as bundle
from gpuaas_sdk.bundles.installing import DOES_NOT_FIT
from gpuaas_sdk.bundles.names import check_package
from gpuaas_sdk.testing import FakeMachine

RECORD = MachineRecord("/var/lib/gpuaas/my-app", Belongings(), parts=("baseline", "bundle", "brought", "kept"))
GROUPS = {"worker": ["alpha"], "controller": ["alpha", "beta"]}


def make_deb(directory: Path, name: str, version: str, *, depends: str = "") -> Path:
    root = directory / name
    (root / "DEBIAN").mkdir(parents=True)
    (root / "usr/share").mkdir(parents=True)
    (root / "usr/share" / name).write_text(f"{name} has a file\n")
    needs = f"Depends: {depends}\n" if depends else ""
    named = f"Package: {name}\nVersion: {version}\nArchitecture: all\n"
    (root / "DEBIAN/control").write_text(f"{named}Maintainer: T <t@example.org>\n{needs}Description: x\n")
    deb = directory / f"{name}_{version.replace(':', '%3a')}_all.deb"
    subprocess.run(["dpkg-deb", "--build", str(root), str(deb)], check=True, capture_output=True)
    return deb


def read_control(deb: Path) -> str:
    return subprocess.run(["dpkg-deb", "--field", str(deb)], check=True, capture_output=True, text=True).stdout


def test_packing_is_deterministic(tmp_path: Path) -> None:
    debs = [make_deb(tmp_path, "beta", "1:2.0-1"), make_deb(tmp_path, "alpha", "1.0")]
    first, second = tmp_path / "a.tar", tmp_path / "b.tar"
    needs = {"worker": debs[1:], "controller": debs}
    assert bundle.pack(debs, GROUPS, needs, first) == 2
    bundle.pack(reversed(debs), GROUPS, needs, second)
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
    bundle.pack(debs, {}, {}, tmp_path / "bundle.tar")
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
    with pytest.raises(BundleError, match="cannot find dpkg-scanpackages"):
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


def test_the_cache_key_follows_image_sources_and_packages() -> None:
    asked = [(b"a", b"b", GROUPS), (b"a2", b"b", GROUPS), (b"a", b"b2", GROUPS), (b"a", b"b", {"worker": ["beta"]})]
    assert len({bundle.cache_key(*each) for each in asked}) == 4


def write_archive(directory: Path) -> Path:
    """An archive with alpha, and beta and gamma, which need it; return the sources."""
    archive = directory / "archive"
    archive.mkdir()
    make_deb(archive, "alpha", "1.0")
    make_deb(archive, "beta", "1:2.0-1", depends="alpha")
    make_deb(archive, "gamma", "3.0", depends="alpha")
    (archive / "Packages").write_bytes(bundle.write_index(archive))
    sources = directory / "sources.list"
    sources.write_text(f"deb [trusted=yes] copy:{archive} ./\n")
    return sources


def make(directory: Path, groups: dict[str, list[str]], *, sources: Path, status: str = "") -> tuple[Path, list[str]]:
    said: list[str] = []
    (directory / "status").write_text(status)
    output = directory / "out" / "packages.tar"
    make_package_bundle(
        groups,
        output=output,
        dpkg_status=directory / "status",
        cache=directory / "cache",
        sources=sources,
        say=said.append,
    )
    return output, said


def test_a_bundle_has_what_the_packages_need_beyond_the_image_and_is_made_once(tmp_path: Path) -> None:
    sources = write_archive(tmp_path)
    output, said = make(tmp_path, {"head": ["beta"]}, sources=sources)
    with tarfile.open(output) as tar:
        assert [name for name in tar.getnames() if name.endswith(".deb")] == ["alpha_1.0_all.deb", "beta_2.0-1_all.deb"]
    assert said[-1].startswith("2 packages")
    _, again = make(tmp_path, {"head": ["beta"]}, sources=sources)
    assert again[0].startswith("Using the bundle made before")
    has_alpha = (
        "Package: alpha\nStatus: install ok installed\nVersion: 1.0\nArchitecture: all\nMaintainer: T\nDescription: x\n"
    )
    smaller, _ = make(tmp_path, {"head": ["beta"]}, sources=sources, status=has_alpha)
    with tarfile.open(smaller) as tar:
        assert [name for name in tar.getnames() if name.endswith(".deb")] == ["beta_2.0-1_all.deb"]


@pytest.mark.parametrize(
    ("groups", "code", "sentence"),
    [
        ({"head": ["no-such-thing"]}, "package_unknown", "the archive has no package no-such-thing for this image"),
        ({"head": ["alpha; reboot"]}, "bad_package_name", "'alpha; reboot' is not the name of a Debian package"),
        ({"head": ["$(reboot)"]}, "bad_package_name", "is not the name of a Debian package"),
        ({"head": ["--allow-downgrades"]}, "bad_package_name", "is not the name of a Debian package"),
        ({"head": ["alpha-"]}, "bad_package_name", "is not the name of a Debian package"),
        ({"head": ["../alpha.deb"]}, "bad_package_name", "is not the name of a Debian package"),
        ({"head": ["Alpha"]}, "bad_package_name", "is not the name of a Debian package"),
        ({"head": [""]}, "bad_package_name", "is not the name of a Debian package"),
        ({"head": ["a" * 200]}, "bad_package_name", "is not the name of a Debian package"),
        ({"head": [7]}, "bad_package_name", "7 is not the name of a Debian package"),
        ({"he ad": ["alpha"]}, "bad_group_name", "'he ad' is not the name of a group"),
        ({"head": []}, "no_packages", "name at least one package"),
        ({}, "no_packages", "name at least one package"),
    ],
)
def test_what_cannot_be_bundled_gets_a_sentence_and_leaves_nothing(
    tmp_path: Path, groups: dict[str, list[str]], code: str, sentence: str
) -> None:
    sources = write_archive(tmp_path)
    with pytest.raises(BundleError, match=re.escape(sentence)) as refused:
        make(tmp_path, groups, sources=sources)
    assert refused.value.code == code
    assert not (tmp_path / "out").exists()


def test_an_archive_out_of_reach_is_not_taken_for_an_unknown_package(tmp_path: Path) -> None:
    sources = tmp_path / "sources.list"
    # Nothing listens there.
    sources.write_text("deb [trusted=yes] http://127.0.0.1:9/debian bookworm main\n")
    with pytest.raises(BundleError, match="cannot fetch from the archive") as refused:
        make(tmp_path, {"head": ["alpha"]}, sources=sources)
    assert refused.value.code == "archive_unreachable"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["g++", "libstdc++6", "python3.11", "0ad", "xz-utils"])
def test_names_of_debian_are_taken(name: str) -> None:
    check_package(name)


PACKAGES = DebianPackages(RECORD, ("controller", "worker"), prepare="echo prepared", before_purge="mend_postrm a b")


def test_scripts_are_valid_bash_and_quote_what_varies() -> None:
    install = PACKAGES.install_script("/bundles/a b", ["worker"])
    assert "roles=(role-worker)" in install
    assert "needs=(needs-controller needs-worker)" in install
    assert "bundle='/bundles/a b'" in install
    scripts = [
        install,
        PACKAGES.baseline_script(Belongings()),
        PACKAGES.remove_script(Belongings(), ["worker"], ["controller"]),
        *PACKAGES.checks().values(),
    ]
    for script in scripts:
        checked = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr


async def test_a_group_that_the_bundle_does_not_have_is_refused_before_anything_is_done() -> None:
    machine = FakeMachine()
    with pytest.raises(ValueError, match="the bundle has no group 'gpu'; it has controller, worker"):
        await PACKAGES.ensure_installed(machine, "sha256:00", ["gpu"])
    assert machine.steps == {}
    with pytest.raises(ValueError, match="lacks the part baseline"):
        DebianPackages(MachineRecord("/var/lib/gpuaas/my-app", Belongings()), ("worker",))
    with pytest.raises(ValueError, match="name the groups"):
        DebianPackages(RECORD, ())


async def test_a_bundle_for_another_image_is_said_to_be() -> None:
    said = CommandResult(DOES_NOT_FIT, "", "libfoo2 is not there")
    machine = FakeMachine(answers={"install-packages": said})
    with pytest.raises(OperationFailed, match=r"not made for the image of node-1.*libfoo2 is not there") as failed:
        await PACKAGES.ensure_installed(machine, "sha256:00", ["worker"])
    assert failed.value.code == "bundle_does_not_fit"
