"""Logging in: certificates on both sides, and nothing else."""

import hashlib
import tracemalloc
from collections.abc import AsyncGenerator

import pytest

from gpuaas_contract.access import MachineAddress
from gpuaas_sdk import LeaseLostError, MachineUnreachableError
from gpuaas_sdk.errors import DeliveryFailedError
from gpuaas_sdk.machines import connection, ssh
from gpuaas_sdk.machines.access import OperationAccess
from gpuaas_sdk.testing import ScriptedPlatform, problem

from .sdk_test_machines import SshdPlatform, claim, keygen, make_host_key


async def test_a_script_is_read_over_one_connection(sshd: SshdPlatform) -> None:
    machine = await sshd.machine()
    answer = await machine.read("echo hello; echo $GPUAAS_CORRELATION_ID >&2; cat; exit 3")
    assert (answer.exit_status, answer.stdout, answer.stderr) == (3, "hello\n", "cor_op_1\n")
    assert (await machine.read("echo $((6*7))")).stdout == "42\n"
    assert (len(sshd.streams), sshd.grants) == (1, 1)
    await machine.close()


async def test_a_script_may_be_of_any_size_and_stays_out_of_argument_lists(sshd: SshdPlatform) -> None:
    machine = await sshd.machine()
    script = "# " + "x" * 200_000 + "\nps -eo args | grep -c '[s]ecret-in-script' || true\n# secret-in-script ß\n\n"
    answer = await machine.read(script)
    assert (answer.exit_status, answer.stdout.strip()) == (0, "0")


async def test_a_failing_line_ends_the_script(sshd: SshdPlatform) -> None:
    machine = await sshd.machine()
    assert (await machine.read("false | true; echo not here")).stdout == ""
    assert (await machine.read("echo $undefined")).exit_status != 0


async def test_a_script_that_hangs_is_ended_on_the_machine(sshd: SshdPlatform) -> None:
    machine = await sshd.machine()
    assert (await machine.read("sleep 60", timeout=1)).exit_status == 124


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "PATIENCE", 0.3)


async def test_a_host_of_another_authority_is_refused(sshd: SshdPlatform) -> None:
    keygen("-t", "ed25519", "-N", "", "-f", sshd.directory / "other")
    for name in ("host", "host.pub", "host-cert.pub"):
        (sshd.directory / name).unlink()
    make_host_key(sshd.directory, sshd.directory / "other")
    machine = await sshd.machine()
    with pytest.raises(MachineUnreachableError, match="did not prove its identity"):
        await machine.read("true")


async def test_a_host_with_the_certificate_of_another_machine_is_refused(sshd: SshdPlatform) -> None:
    sshd.principal = "alc_2"
    machine = await sshd.machine()
    with pytest.raises(MachineUnreachableError, match="did not prove its identity"):
        await machine.read("true")


@pytest.mark.usefixtures("_impatient")
async def test_a_host_with_a_plain_key_is_refused(sshd: SshdPlatform) -> None:
    config = sshd.directory / "sshd_config"
    config.write_text(config.read_text().replace("HostCertificate", "# HostCertificate"))
    machine = await sshd.machine()
    # No algorithm in common: whichever side notices first ends the connection.
    with pytest.raises(MachineUnreachableError):
        await machine.read("true")


async def test_a_refused_certificate_is_tried_once_more_with_a_new_grant(sshd: SshdPlatform) -> None:
    sshd.user = "nobody-at-all"
    machine = await sshd.machine()
    with pytest.raises(MachineUnreachableError, match="refused the certificate"):
        await machine.read("true")
    assert sshd.grants == 2


async def test_a_cut_connection_is_made_anew(sshd: SshdPlatform) -> None:
    machine = await sshd.machine()
    await machine.read("true")
    await sshd.cut()
    assert (await machine.read("echo again")).stdout == "again\n"
    assert len(sshd.streams) == 2


async def test_a_grant_that_is_nearly_over_is_replaced_before_it_ends(sshd: SshdPlatform) -> None:
    sshd.seconds = 10
    machine = await sshd.machine()
    sshd.seconds = 300
    await machine.read("true")
    assert sshd.grants == 2


@pytest.mark.usefixtures("_impatient")
async def test_a_machine_that_does_not_answer_is_unreachable(sshd: SshdPlatform) -> None:
    sshd.start = ["true"]
    machine = await sshd.machine()
    with pytest.raises(MachineUnreachableError, match="one: cannot log in"):
        await machine.read("true")


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("noise", ["echo 'HTTP/1.1 400 Bad Request'", "head -c 4096 /dev/zero", "echo SSH-2.0-x; cat"])
async def test_a_machine_that_answers_garbled_is_unreachable(sshd: SshdPlatform, noise: str) -> None:
    sshd.start = ["sh", "-c", noise]
    machine = await sshd.machine()
    with pytest.raises(MachineUnreachableError, match="one: cannot log in"):
        await machine.read("true")


@pytest.mark.usefixtures("_impatient")
async def test_a_machine_that_is_too_slow_is_unreachable_and_well_when_it_is_not(
    sshd: SshdPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, sshd.start = sshd.start, ["sleep", "600"]
    machine = await sshd.machine()
    monkeypatch.setattr(connection, "LOGIN_SECONDS", 0.5)
    with pytest.raises(MachineUnreachableError):
        await machine.read("true")
    monkeypatch.undo()
    sshd.start = quick
    assert (await machine.read("echo well")).stdout == "well\n"


PIECE = b"0123456789abcdef" * (1 << 13)
PIECES = 300
LARGE = len(PIECE) * PIECES


async def large() -> AsyncGenerator[bytes]:
    for _ in range(PIECES):
        yield bytes(bytearray(PIECE))


async def test_large_content_is_never_held_as_a_whole(sshd: SshdPlatform) -> None:
    machine = await sshd.machine()
    expected = hashlib.sha256()
    for _ in range(PIECES):
        expected.update(PIECE)
    await machine.read("true")
    tracemalloc.start()
    try:
        answer = await machine.run_repeatable("sha256sum", large, 600)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert answer.stdout.decode().split()[0] == expected.hexdigest()
    assert peak < LARGE / 4


async def test_large_content_is_read_anew_where_the_connection_was_cut(sshd: SshdPlatform) -> None:
    machine = await sshd.machine()
    begun = 0

    async def content() -> AsyncGenerator[bytes]:
        nonlocal begun
        begun += 1
        number = 0
        async for piece in large():
            yield piece
            number += 1
            if begun == 1 and number == PIECES // 2:
                await sshd.cut()

    answer = await machine.run_repeatable("wc -c", content, 600)
    assert (answer.exit_status, int(answer.stdout), begun) == (0, LARGE, 2)


async def test_a_command_that_has_heard_enough_is_not_sent_the_rest(sshd: SshdPlatform) -> None:
    machine = await sshd.machine()
    answer = await machine.run_repeatable("head -c 10; echo enough >&2; exit 3", large, 600)
    assert (answer.exit_status, answer.stdout, answer.stderr) == (3, PIECE[:10], b"enough\n")


async def test_content_that_cannot_be_read_on_ends_the_command(sshd: SshdPlatform) -> None:
    machine = await sshd.machine()
    whole, part = sshd.directory / "whole", sshd.directory / "part"

    async def broken() -> AsyncGenerator[bytes]:
        yield PIECE
        raise DeliveryFailedError("the registry has something else")

    with pytest.raises(DeliveryFailedError):
        await machine.run_repeatable(
            f"head -c {LARGE} >{part}; [ $(stat -c %s {part}) != {LARGE} ] || touch {whole}", broken, 600
        )
    assert (await machine.read("echo well")).stdout == "well\n"
    assert len(sshd.streams) == 1
    assert not whole.exists()


DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize("code", ["shape_unsupported", "not_found", "forbidden"])
async def test_a_delivery_that_the_platform_refuses_has_failed(code: str) -> None:
    """And is no bug of the handler that asked for it."""
    platform = ScriptedPlatform(problem(code, {"not_found": 404, "forbidden": 403}.get(code, 409)))
    async with platform.client() as client:
        address = MachineAddress(allocation_id="alc_1", hostname="one", address="192.0.2.1", host_principal="alc_1")
        machine = ssh.SshMachine(OperationAccess(client, claim(1, "op_1")), address)
        with pytest.raises(DeliveryFailedError, match=f"cannot deliver {DIGEST} to one: .*{code}"):
            await machine.deliver(DIGEST)


async def test_a_delivery_without_a_lease_belongs_to_somebody_else() -> None:
    async with ScriptedPlatform(problem("stale_lease", 409)).client() as client:
        address = MachineAddress(allocation_id="alc_1", hostname="one", address="192.0.2.1", host_principal="alc_1")
        with pytest.raises(LeaseLostError):
            await ssh.SshMachine(OperationAccess(client, claim(1, "op_1")), address).deliver(DIGEST)
