"""Steps on a real slice: transient units, fencing, files."""

import asyncio
import time

import pytest

from gpuaas_sdk import CommandError, MachineFencedError

from .sdk_test_machines import SshdPlatform

pytestmark = pytest.mark.machines


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
    script = "echo ran >>/root/cut-runs; sleep 2; echo done"
    step = asyncio.create_task(machine.run_step("long", script))
    await asyncio.sleep(1)
    await slice_platform.cut()
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


async def test_a_successor_waits_for_the_same_step_of_its_predecessor(slice_platform: SshdPlatform) -> None:
    old = await slice_platform.machine(30, instance="ins_wait")
    new = await slice_platform.machine(31, instance="ins_wait")
    first = asyncio.create_task(old.run_step("install", "echo a-start >>/root/w; sleep 2; echo a-end >>/root/w"))
    await asyncio.sleep(1)
    await new.run_step("install", "echo b >>/root/w")
    await first
    assert (await new.read("cat /root/w")).stdout.split() == ["a-start", "a-end", "b"]


async def test_a_write_waits_for_the_predecessors_units_too(slice_platform: SshdPlatform) -> None:
    old = await slice_platform.machine(30, instance="ins_wait2")
    new = await slice_platform.machine(31, instance="ins_wait2")
    first = asyncio.create_task(old.run_step("install", "sleep 2; echo old >/root/w2"))
    await asyncio.sleep(1)
    await new.write_file("/root/w2", "new")
    await first
    assert (await new.read("cat /root/w2")).stdout == "new"


async def test_two_members_on_one_machine_do_not_shut_each_other_out(slice_platform: SshdPlatform) -> None:
    one = await slice_platform.machine(40, operation="op_c", member="mem_1", instance="ins_two")
    two = await slice_platform.machine(41, operation="op_w", member="mem_2", instance="ins_two")
    await two.run_step("s", "true")
    slow = asyncio.create_task(one.run_step("s", "sleep 3"))
    await asyncio.sleep(0.5)
    started = time.monotonic()
    await two.run_step("t", "true")
    assert time.monotonic() - started < 2
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
