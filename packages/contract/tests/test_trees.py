"""Entries that lead out of a tree are found before anybody unpacks it."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gpuaas_contract.trees import UnsafeTreeError, check_tar, is_tree

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
