"""slurmdbd: the door to the accounting database."""

from gpuaas_sdk.machines.base import Machine
from slurm_app.slurm.config import SLURMDBD_DROP_IN, SLURMDBD_PORT, render_slurmdbd_conf
from slurm_app.slurm.script import put_file, step

CONFIGURATION = "/etc/slurm/slurmdbd.conf"


def start_script() -> str:
    return step(
        # slurmdbd refuses a configuration that anybody else could read.
        put_file(CONFIGURATION, render_slurmdbd_conf(), mode="0600", owner="slurm:slurm"),
        f"ensure_unit_current slurmdbd.service {CONFIGURATION} {SLURMDBD_DROP_IN}",
        f"wait_for 30 'slurmdbd to listen' port_open 127.0.0.1 {SLURMDBD_PORT}",
        "slurmdbd -V | sed 's/.* /slurmdbd=/'",
    )


async def ensure_slurmdbd_running(machine: Machine) -> dict[str, str]:
    result = await machine.run_step("start-slurmdbd", start_script())
    return result.values
