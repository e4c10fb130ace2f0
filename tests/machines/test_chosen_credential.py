"""A deploy that chose an access credential: its controller enters the machine with that key, and with nothing else."""

from pathlib import Path

import pytest

from gpuaas_contract.instances import ChosenAccess
from gpuaas_sdk.machines import MachineUnreachableError
from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine
from tests.machines.controller import controller_on
from tests.machines.slices import make, release
from tests.machines.stand_in import make_key

KEYS = "/etc/ssh/gpuaas_keys"
"""Where the sshd of a slice looks for keys beside certificates, one file for each login."""


async def test_the_chosen_key_opens_the_machine(stack: Stack, cli: CommandLine, node: str, tmp_path: Path) -> None:
    made = make(cli, "keyed")["keyed"]
    where = (stack, made["project_id"], made["id"])
    public, chosen = {}, {}
    for name in ("trusted", "strange"):
        (tmp_path / name).mkdir()
        public[name] = make_key(tmp_path / name)[1]
        credential = cli.json("credential", "create", name, "--private-key", str(tmp_path / name / "key"))
        chosen[name] = ChosenAccess(credential_id=credential["id"])
    async with controller_on(*where) as controller:
        # By certificate, as without any choice: the machine is told to trust one of the keys.
        machine = controller.machines.machine(made["id"])
        await machine.run_step("make-room", f"mkdir -p {KEYS}")
        await machine.write_file(f"{KEYS}/root", public["trusted"])
    async with controller_on(*where, chosen["trusted"]) as controller:
        machine = controller.machines.machine(made["id"])
        assert (await machine.read("id -un; hostname")).stdout == "root\nkeyed\n"
        await machine.run_step("greet", "echo hello > /root/greeting")
        assert (await machine.read("cat /root/greeting")).stdout == "hello\n"
    async with controller_on(*where, chosen["strange"]) as controller:
        with pytest.raises(MachineUnreachableError, match="refused the stored key"):
            await controller.machines.machine(made["id"]).read("true")
    release(cli, "keyed")
