"""The return of a machine's record, as its bash does it."""

import subprocess
import tarfile
from pathlib import Path

import pytest

from slurm_app.slurm.record import unpack_script
from slurm_app.slurm.script import STATE_DIRECTORY


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Of a machine that lost its record, to which it has just been copied."""
    state, packed = tmp_path / "state", tmp_path / "packed"
    state.mkdir()
    with tarfile.open(state / "returned.tar.gz", "w:gz") as archive:
        for part in ("baseline", "bundle"):
            (packed / part).mkdir(parents=True)
            (packed / part / "names").write_text(part)
            archive.add(packed / part, part)
    return state


def unpack(state: Path) -> None:
    script = unpack_script().replace(STATE_DIRECTORY, str(state))
    subprocess.run(["bash"], input=script, text=True, check=True, capture_output=True)


def what_is_there(state: Path) -> dict[str, str]:
    return {str(path.relative_to(state)): path.read_text() for path in state.rglob("*") if path.is_file()}


def test_to_bring_it_back_twice_is_to_bring_it_back_once(state: Path) -> None:
    for _ in range(2):
        unpack(state)
        assert what_is_there(state) == {"baseline/names": "baseline", "bundle/names": "bundle"}


def test_one_that_was_killed_while_it_unpacked_begins_anew(state: Path) -> None:
    (state / "returned" / "baseline").mkdir(parents=True)
    unpack(state)
    assert what_is_there(state) == {"baseline/names": "baseline", "bundle/names": "bundle"}


def test_what_is_there_is_never_overwritten(state: Path) -> None:
    (state / "baseline").mkdir()
    (state / "baseline" / "names").write_text("as it was before")
    unpack(state)
    assert what_is_there(state) == {"baseline/names": "as it was before", "bundle/names": "bundle"}
