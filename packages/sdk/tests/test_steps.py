"""Steps on a real slice: transient units, fencing, files."""

import asyncio
import time

import pytest

from gpuaas_sdk import CommandError, MachineFencedError
from gpuaas_sdk.machines.ssh import SshMachine

from .sdk_test_machines import SshdPlatform

pytestmark = pytest.mark.machines
PATIENCE = 60


def wait_for(path: str) -> str:
    """A piece of a step that goes on when there is such a file."""
    return f"until [ -e {path} ]; do sleep 0.05; done"


async def until(machine: SshMachine, question: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await machine.read(question)).exit_status != 0:  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.05)


async def let_go(platform: SshdPlatform, path: str) -> None:
    """By somebody whom no fence of the test's instance keeps out."""
    another = await platform.machine(10, operation="op_other", instance="ins_other")
    await another.write_file(path, "")


async def test_a_step_runs_as_a_unit_and_leaves_nothing(slice_platform: SshdPlatform) -> None:
    machine = await slice_platform.machine(10, operation="op_A", instance="ins_basic")
    script = "systemctl list-units --plain --no-legend 'gpuaas-*'; echo $GPUAAS_CORRELATION_ID $HOME; id -u; echo e >&2"
    answer = await machine.run_step("Install Packages!", script)
    assert "gpuaas-op_a-install-packages.service" in answer.stdout
    assert "(cor_op_A, token 10)" in answer.stdout
    assert answer.stdout.endswith("cor_op_A /root\n0\n")
    assert answer.stderr == "e\n"
    assert (await machine.read("ls /run/gpuaas/steps")).stdout == ""
    journal = await machine.read("journalctl -o cat -g cor_op_A")
    assert "gpuaas-op_a-install-packages" in journal.stdout
    started = time.monotonic()
    await machine.run_step("quick", "true")
    print(f"one step: {(time.monotonic() - started) * 1000:.0f} ms")
    await machine.close()


async def test_a_failing_step_says_why(slice_platform: SshdPlatform) -> None:
    machine = await slice_platform.machine(10, instance="ins_fail")
    with pytest.raises(CommandError, match=r"cannot run step broken on one: exit status 7: no such luck") as caught:
        await machine.run_step("broken", "echo before; echo no such luck >&2; exit 7")
    assert caught.value.result.stdout == "before\n"
    with pytest.raises(CommandError, match="time limit"):
        await machine.run_step("slow", "sleep 30", timeout=1)


async def test_large_scripts_and_outputs(slice_platform: SshdPlatform) -> None:
    machine = await slice_platform.machine(10, instance="ins_large")
    script = "# " + "y" * 3_000_000 + "\nhead -c 400000 /dev/zero | tr '\\0' z\nprintf end"
    answer = await machine.run_step("large", script)
    assert len(answer.stdout) == 256 * 1024
    assert answer.stdout.endswith("zend")


async def test_a_step_outlives_its_connection_and_is_not_run_twice(slice_platform: SshdPlatform) -> None:
    machine = await slice_platform.machine(10, instance="ins_cut")
    script = f"echo ran >>/root/cut-runs; {wait_for('/root/cut-is-over')}; echo done"
    step = asyncio.create_task(machine.run_step("long", script))
    await until(machine, "test -e /root/cut-runs")
    await slice_platform.cut()
    await let_go(slice_platform, "/root/cut-is-over")
    assert (await step).stdout == "done\n"
    assert (await machine.read("cat /root/cut-runs")).stdout == "ran\n"
    assert (await machine.read("ls /run/gpuaas/steps")).stdout == ""


async def test_an_older_token_is_refused(slice_platform: SshdPlatform) -> None:
    old = await slice_platform.machine(20, instance="ins_fence")
    new = await slice_platform.machine(21, instance="ins_fence")
    await old.run_step("s", "true")
    await new.run_step("s", "true")
    with pytest.raises(MachineFencedError, match="newer fencing token 21"):
        await old.run_step("s", "touch /root/stale")
    with pytest.raises(MachineFencedError):
        await old.write_file("/root/stale", "x")
    assert (await new.read("test -e /root/stale")).exit_status == 1
    assert (await new.read("cat /var/lib/gpuaas/fence/ins_fence")).stdout == "21\n"
    assert (await new.read("ls /run/gpuaas/steps")).stdout == ""


async def test_a_successor_waits_for_the_same_step_of_its_predecessor(slice_platform: SshdPlatform) -> None:
    old = await slice_platform.machine(30, instance="ins_wait")
    new = await slice_platform.machine(31, instance="ins_wait")
    script = f"echo a-start >>/root/w; {wait_for('/root/w-go')}; echo a-end >>/root/w"
    first = asyncio.create_task(old.run_step("install", script))
    await until(new, "test -e /root/w")
    second = asyncio.create_task(new.run_step("install", "echo b >>/root/w"))
    await until(new, "grep -qx 31 /var/lib/gpuaas/fence/ins_wait")
    assert not second.done()
    await let_go(slice_platform, "/root/w-go")
    await asyncio.gather(first, second)
    assert (await new.read("cat /root/w")).stdout.split() == ["a-start", "a-end", "b"]


async def test_a_write_waits_for_the_predecessors_units_too(slice_platform: SshdPlatform) -> None:
    old = await slice_platform.machine(30, instance="ins_wait2")
    new = await slice_platform.machine(31, instance="ins_wait2")
    script = f"touch /root/w2-began; {wait_for('/root/w2-go')}; echo old >/root/w2"
    first = asyncio.create_task(old.run_step("install", script))
    await until(new, "test -e /root/w2-began")
    second = asyncio.create_task(new.write_file("/root/w2", "new"))
    await until(new, "grep -qx 31 /var/lib/gpuaas/fence/ins_wait2")
    assert not second.done()
    await let_go(slice_platform, "/root/w2-go")
    await asyncio.gather(first, second)
    assert (await new.read("cat /root/w2")).stdout == "new"


async def test_two_members_on_one_machine_do_not_shut_each_other_out(slice_platform: SshdPlatform) -> None:
    one = await slice_platform.machine(40, operation="op_c", member="mem_1", instance="ins_two")
    two = await slice_platform.machine(41, operation="op_w", member="mem_2", instance="ins_two")
    await two.run_step("s", "true")
    slow = asyncio.create_task(one.run_step("s", f"touch /root/two-began; {wait_for('/root/two-go')}"))
    await until(two, "test -e /root/two-began")
    # It is this one that lets the other go on: were it to wait for it, both would wait for ever.
    await two.run_step("t", "touch /root/two-go")
    await slow
    whole = await slice_platform.machine(42, operation="op_d", instance="ins_two")
    await whole.run_step("teardown", "true")
    with pytest.raises(MachineFencedError):
        await one.run_step("s", "true")


async def test_a_file_is_replaced_with_its_mode_and_owner(slice_platform: SshdPlatform) -> None:
    machine = await slice_platform.machine(10, operation="op_f", instance="ins_file")
    await machine.write_file("/etc/demo.key", bytes(range(256)), mode=0o400, owner="nobody", group="nogroup")
    await machine.write_file("/etc/demo.conf", "grüße\n")
    facts = await machine.read("stat -c '%a %U %G %s' /etc/demo.key /etc/demo.conf; ls -A /etc | grep gpuaas || true")
    assert facts.stdout == "400 nobody nogroup 256\n644 root root 8\n"
    assert (
        "wrote /etc/demo.key for op_f (cor_op_f, token 10)"
        in (await machine.read("journalctl -o cat -t gpuaas")).stdout
    )
    with pytest.raises(CommandError, match="no directory /etc/missing/"):
        await machine.write_file("/etc/missing/x", "x")
    with pytest.raises(CommandError, match="invalid user"):
        await machine.write_file("/etc/x", "x", owner="nobody-at-all")
    assert (await machine.read("ls -A /etc | grep -c gpuaas || true")).stdout == "0\n"
