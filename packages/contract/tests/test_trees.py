"""Entries that lead out of a tree are found before anybody unpacks it."""

import gzip
import io
import secrets
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuaas_contract.trees import UnsafeTreeError, check_file, check_tar, declares_privileges, is_tree

FILE, DIRECTORY, LINK, HARD, DEVICE = (
    tarfile.REGTYPE,
    tarfile.DIRTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.CHRTYPE,
)


def make(path: Path, *entries: tuple[str, bytes, str], **fields: Any) -> Path:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, target in entries:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, target
            entry.size = 3 if kind == FILE else 0
            tar.addfile(entry, io.BytesIO(b"abc") if kind == FILE else None)
    return path


def test_an_honest_tree_passes(tmp_path: Path) -> None:
    check_tar(
        make(
            tmp_path / "tree.tar",
            ("./", DIRECTORY, ""),
            ("lib", DIRECTORY, ""),
            ("lib/one.so.1", FILE, ""),
            ("lib/one.so", LINK, "one.so.1"),
            ("bin/tool", LINK, "../lib/one.so.1"),
            ("same", HARD, "lib/one.so.1"),
            ("long/" + "n" * 200, FILE, ""),
        )
    )


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([("../etc/passwd", FILE, "")], "leads out of the tree"),
        ([("a/../../etc/passwd", FILE, "")], "leads out of the tree"),
        ([("/etc/passwd", FILE, "")], "leads out of the tree"),
        ([("n" * 200 + "/../../x", FILE, "")], "leads out of the tree"),
        ([("a", LINK, "/etc")], "link out of the tree"),
        ([("a", LINK, "..")], "link out of the tree"),
        ([("a/b", LINK, "../../x")], "link out of the tree"),
        # Each by itself stays inside; together they do not.
        ([("here", LINK, "."), ("a", LINK, "here/..")], "link out of the tree"),
        ([("here", LINK, "."), ("here/a", LINK, "..")], "leads through a link"),
        ([("a", LINK, "b"), ("a/passwd", FILE, "")], "leads through a link"),
        ([("a", HARD, "../../etc/shadow")], "link out of the tree"),
        ([("a", HARD, "/etc/shadow")], "link out of the tree"),
        ([("null", DEVICE, "")], "neither a file, a directory nor a link"),
    ],
)
def test_what_leads_out_is_named(tmp_path: Path, entries: list[tuple[str, bytes, str]], reason: str) -> None:
    with pytest.raises(UnsafeTreeError, match=reason):
        check_tar(make(tmp_path / "tree.tar", *entries))


@pytest.fixture
def make_entry(tmp_path: Path) -> Callable[..., Path]:
    def make(
        compression: str = "w", pax: dict[str, str] | None = None, for_all: dict[str, str] | None = None, **fields: Any
    ) -> Path:
        path = tmp_path / f"tree.{secrets.token_hex(2)}"
        with tarfile.open(path, compression, format=tarfile.PAX_FORMAT, pax_headers=for_all or {}) as tar:  # type: ignore[call-overload]
            entry = tarfile.TarInfo("tool")
            entry.pax_headers = pax or {}
            for name, value in fields.items():
                setattr(entry, name, value)
            tar.addfile(entry)
        return path

    return make


CAPABILITY = "SCHILY.xattr.security.capability"
PRIVILEGED: list[tuple[dict[str, Any], str]] = [
    ({"mode": 0o4755}, "setuid or setgid"),
    ({"mode": 0o2755}, "setuid or setgid"),
    ({"mode": 0o4755, "type": DIRECTORY}, "setuid or setgid"),
    ({"type": DEVICE}, "neither a file, a directory nor a link"),
    ({"type": tarfile.BLKTYPE}, "neither a file, a directory nor a link"),
    ({"type": tarfile.FIFOTYPE}, "neither a file, a directory nor a link"),
    ({"pax": {CAPABILITY: "\x01\x00"}}, "gives capabilities"),
    ({"pax": {"LIBARCHIVE.xattr.security%2Ecapability": "AQA="}}, "gives capabilities"),
    ({"for_all": {CAPABILITY: "x"}}, "gives capabilities"),
]


@pytest.mark.parametrize(("fields", "reason"), PRIVILEGED)
@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
@pytest.mark.parametrize(
    "media_type", ["application/octet-stream", "application/x-tar", "application/vnd.x.tar+gzip", ""]
)
def test_what_gives_rights_away_has_to_be_declared(
    make_entry: Callable[..., Path], fields: dict[str, Any], reason: str, mode: str, media_type: str
) -> None:
    """Whatever the media type says, and however it is compressed."""
    path = make_entry(mode, **fields)
    with pytest.raises(UnsafeTreeError, match=reason):
        check_file(path, media_type)
    check_file(path, "application/vnd.gpuaas.directory.v1.privileged.tar")


def test_a_declaration_lets_nothing_out_of_the_tree(tmp_path: Path) -> None:
    path = make(tmp_path / "tree.tar", ("../etc/passwd", FILE, ""))
    with pytest.raises(UnsafeTreeError, match="leads out of the tree"):
        check_file(path, "application/vnd.gpuaas.directory.v1.privileged.tar")


def test_ordinary_modes_and_attributes_pass(make_entry: Callable[..., Path]) -> None:
    check_file(make_entry(mode=0o755, pax={"SCHILY.xattr.user.note": "x"}), "application/x-tar")
    check_file(make_entry(type=DIRECTORY, mode=0o2775), "application/x-tar")


def test_files_that_are_no_tar_pass_where_none_is_announced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for content in (
        b"",
        b"x",
        b"\x1f\x8bnot gzip",
        b"BZh",
        b"\xfd7zXZ\x00",
        bytes(2_000),
        gzip.compress(b"a text" * 99),
    ):
        path.write_bytes(content)
        check_file(path, "application/octet-stream")


def test_what_cannot_be_looked_into_is_not_called_a_tar(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(100))
    check_file(path, "application/octet-stream")
    for media_type in ("application/vnd.x.tar+zstd", "application/x-tar"):
        with pytest.raises(UnsafeTreeError, match="zstd"):
            check_file(path, media_type)


def test_a_small_file_does_not_become_a_huge_one(tmp_path: Path) -> None:
    """Its first entry claims to be as large as a disk, and is said to be so before it is unpacked."""
    entry = tarfile.TarInfo("zeros")
    entry.size = 1 << 40
    path = tmp_path / "bomb.tar.gz"
    path.write_bytes(gzip.compress(entry.tobuf(tarfile.PAX_FORMAT) + bytes(1 << 20)))
    with pytest.raises(UnsafeTreeError, match="expands to more"):
        check_file(path, "application/octet-stream")


def test_which_types_declare_privileges() -> None:
    assert declares_privileges("application/vnd.gpuaas.directory.v1.privileged.tar")
    assert not declares_privileges("application/vnd.unprivileged.tar")


def test_what_is_no_tar_is_said(tmp_path: Path) -> None:
    path = tmp_path / "tree.tar"
    for content in (b"no tar at all" * 100, b"\xff" * 1024):
        path.write_bytes(content)
        with pytest.raises(UnsafeTreeError, match="not a tar"):
            check_tar(path)


def test_a_header_that_claims_to_be_huge_is_not_read(tmp_path: Path) -> None:
    entry = tarfile.TarInfo("././@PaxHeader")
    entry.type, entry.size = tarfile.XHDTYPE, 5 << 30
    path = tmp_path / "tree.tar"
    path.write_bytes(entry.tobuf(tarfile.USTAR_FORMAT) + bytes(1024))
    with pytest.raises(UnsafeTreeError, match="too large"):
        check_tar(path)


def test_which_types_say_that_they_are_a_tree() -> None:
    for media_type in (
        "application/vnd.gpuaas.directory.v1.tar",
        "application/x-tar",
        "application/vnd.oci.layer.v1.tar",
    ):
        assert is_tree(media_type)
    for media_type in ("application/octet-stream", "application/vnd.one.tar+gzip", "application/guitar", ""):
        assert not is_tree(media_type)
