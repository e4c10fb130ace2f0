"""Environments that share lxcfs, and when it ends."""

import os
from pathlib import Path

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
