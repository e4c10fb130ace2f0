"""The choice of GPUs for a slice."""

from pathlib import Path

import pytest

from gpuaas_agent.errors import PermanentError
from gpuaas_agent.gpus import choose_gpu_devices, find_gpu_devices, used_gpu_devices
from gpuaas_agent.lxd import Instance


def test_devices_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("nvidia10", "nvidia2", "nvidia0", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    found = find_gpu_devices(f"{tmp_path}/nvidia[0-9]*")
    assert [Path(path).name for path in found] == ["nvidia0", "nvidia2", "nvidia10"]


def test_a_device_belongs_to_one_slice_only() -> None:
    devices = {
        "root": {"type": "disk", "path": "/"},
        "nvidia0": {"type": "unix-char", "source": "/dev/nvidia0", "path": "/dev/nvidia0"},
    }
    used = used_gpu_devices([Instance("alc-1", "Stopped", {}, devices)])
    assert used == {"/dev/nvidia0"}, "also while the slice is stopped"
    assert choose_gpu_devices(1, ["/dev/nvidia0", "/dev/nvidia1"], used) == ["/dev/nvidia1"]
    with pytest.raises(PermanentError, match="the host has 2, of which 1 are free"):
        choose_gpu_devices(2, ["/dev/nvidia0", "/dev/nvidia1"], used)
