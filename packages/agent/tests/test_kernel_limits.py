"""Room for many slices in what the kernel counts for all of them together."""

from pathlib import Path

import pytest

from gpuaas_agent.kernel_limits import ENOUGH, PROCESSES, PROCESSES_OF_THE_HOST, raise_limits


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    for name in (*ENOUGH, PROCESSES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("128\n")
    return tmp_path


def limits(kernel: Path) -> dict[str, int]:
    return {name: int((kernel / name).read_text()) for name in ENOUGH}


def test_limits_are_raised_and_never_lowered(kernel: Path) -> None:
    (kernel / "kernel/keys/maxkeys").write_text("1000000\n")
    raise_limits(kernel)
    assert limits(kernel) == {**ENOUGH, "kernel/keys/maxkeys": 1_000_000}


def test_a_kernel_without_one_of_them_still_gets_the_others(kernel: Path, caplog: pytest.LogCaptureFixture) -> None:
    (kernel / "kernel/keys/maxkeys").unlink()
    raise_limits(kernel)
    assert int((kernel / "kernel/keys/maxbytes").read_text()) == ENOUGH["kernel/keys/maxbytes"]
    assert "cannot raise kernel.keys.maxkeys" in caplog.text


@pytest.mark.parametrize(("before", "after"), [("32768", 100_000 + PROCESSES_OF_THE_HOST), ("4194304", 4_194_304)])
def test_there_are_process_ids_for_all_slices_and_the_host(kernel: Path, before: str, after: int) -> None:
    (kernel / PROCESSES).write_text(before)
    raise_limits(kernel, processes_of_slices=100_000)
    assert int((kernel / PROCESSES).read_text()) == after
