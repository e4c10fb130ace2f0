"""Environments that share lxcfs, and when it ends."""

import os
from pathlib import Path

import pytest

from gpuaas_stack.errors import StackError
from gpuaas_stack.lxcfs import Lxcfs
from gpuaas_stack.processes import alive, recorded, start


def test_lxcfs_stays_for_an_lxd_that_goes_on_and_for_every_environment(tmp_path: Path) -> None:
    lxcfs = Lxcfs(tmp_path, mount=tmp_path / "nothing is mounted here")
    lxcfs.environments.mkdir()
    for environment in ("demo", "tests", "apart"):
        (lxcfs.environments / environment).touch()
    start(["sleep", "600"], {"PATH": os.environ["PATH"]}, tmp_path / "lxcfs.json", tmp_path / "log")
    process = recorded(tmp_path / "lxcfs.json")
    assert process is not None
    lxcfs.release("demo", lxd="one", goes_on=False)
    assert alive(process), "others use it"
    lxcfs.release("tests", lxd="one", goes_on=True)
    lxcfs.release("apart", lxd="two", goes_on=False)
    assert alive(process), "machines of somebody else's run on the first LXD"
    lxcfs.release("tests", lxd="one", goes_on=False)
    assert not alive(process)
    assert list(lxcfs.environments.iterdir()) == []


def test_an_lxcfs_that_dies_while_it_starts_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start_one_that_ends(_: list[str], env: dict[str, str], record: Path, __: Path) -> None:
        start(["sleep", "0.1"], env, record, tmp_path / "log")

    # The real one cannot be made to die here: there is one for the whole machine, and others use it.
    monkeypatch.setattr("gpuaas_stack.lxcfs.start", start_one_that_ends)
    with pytest.raises(StackError, match="it ended while it was starting"):
        Lxcfs(tmp_path, mount=tmp_path / "mount").acquire("demo")
