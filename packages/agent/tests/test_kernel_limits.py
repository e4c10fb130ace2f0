"""Room for many slices in what the kernel counts for all of them together."""

from pathlib import Path

import pytest

from gpuaas_agent.kernel_limits import ENOUGH, raise_limits


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    for name in ENOUGH:
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
