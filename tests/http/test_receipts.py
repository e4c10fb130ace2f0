"""The signed receipt of an instance that has ended: what it says, who can check it, and what spoils it."""

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuaas_contract.agent_link import NodeConditions
from gpuaas_contract.instances import Member, MemberStatus
from gpuaas_contract.nodes import NodeCondition
from gpuaas_contract.operations import OperationError
from gpuaas_contract.receipts import ReceiptState, SignedReceipt, file_bytes
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import StaticToken
from gpuaas_sdk.errors import InvalidStateError
from gpuaas_sdk.signed_receipts import (
    NotAReceipt,
    OtherInstance,
    ProbesCut,
    ReceiptChanged,
    ReceiptRefused,
    UntrustedKey,
    parse_keys,
    pem_of,
    verify_receipt,
)
from gpuaas_stack.settings import Settings
from tests.support.database import connect
from tests.support.lifecycle import Echo
from tests.support.processes import ApiProcess
from tests.support.waiting import until
from tests.support.world import World

GUIDE = Path(__file__).parents[2] / "docs/how-to/check-a-receipt.md"


def entry(member: Member, ok: bool | None = True, found: str = "nothing") -> dict[str, Any]:
    check: dict[str, Any] = {
        "check": "paths",
        "command": "ls -d /opt/echo",
        "expected": "nothing",
        "found": found,
        "ok": ok,
        "at": "now",
    }
    return {
        "member_id": member.id,
        "component_key": member.component_key,
        "hostname": "one",
        "allocation_id": member.allocation_id,
        "clean": ok is True,
        "checks": [check, check | {"check": "users", "command": "getent passwd echo"}],
    }


async def decommission(echo: Echo, result: dict[str, Any]) -> None:
    work = await echo.controller.claim((await echo.request("decommission")).id)
    gone = {member.id: MemberStatus.REMOVED for member in await work.members()}
    await work.client.operations.complete(work.operation_id, work.fencing_token, result=result, member_statuses=gone)


async def signed(echo: Echo) -> SignedReceipt:
    async def found() -> SignedReceipt | None:
        receipt = await echo.world.admin.receipts.get(echo.id)
        return receipt if receipt.state == ReceiptState.SIGNED else None

    return await until(found, "the receipt is signed")


async def keys_of(world: World) -> list[bytes]:
    return [base64.b64decode(key.public_key) for key in (await world.admin.receipts.keys()).items]


def exported(receipt: SignedReceipt) -> bytes:
    assert receipt.signature is not None
    return file_bytes(receipt.receipt, receipt.signature)


async def test_a_receipt_is_signed_and_checked_without_the_platform(
    world: World, settings: Settings, tmp_path: Path
) -> None:
    echo = await Echo.deployed(world, head=await world.allocation("one"))
    with pytest.raises(InvalidStateError, match="has not ended"):
        await world.admin.receipts.get(echo.id)
    members = await echo.members()
    await decommission(echo, {"receipt": {"ok": True, "members": [entry(member) for member in members]}})
    receipt = await signed(echo)
    document = receipt.receipt
    assert document["verdict"] == "nothing_left", document["unverified"]
    assert document["instance"]["id"] == echo.id
    assert (document["tenant"]["id"], document["project"]["id"]) == (world.tenant.id, world.project.id)
    assert document["operation"]["kind"] == "decommission"
    assert document["requested_by"].startswith("usr_")
    assert [probe["command"] for probe in document["probes"]] == ["ls -d /opt/echo", "getent passwd echo"]
    assert {member["removal"] for member in document["members"]} == {"probed"}
    audit = document["audit"]
    assert audit["checkpoint"]["last_position"] >= audit["position"]
    (issued,) = await world.admin.audit.list(tenant_id=world.tenant.id, action="receipt.issue", target=echo.id).all()
    assert (issued.id, issued.position) == (audit["entry_id"], audit["position"])

    keys, content = await keys_of(world), exported(receipt)
    assert verify_receipt(content, keys, instance=echo.id).verdict == "nothing_left"
    _refuses_every_change(content, keys)
    with pytest.raises(OtherInstance, match="another instance"):
        verify_receipt(content, keys, instance="ins_other")
    with pytest.raises(UntrustedKey, match="a key that you do not trust"):
        verify_receipt(content, [])

    # A new version signs from now on; what the old one signed stays good, since its public key stays published.
    async def rotated() -> list[bytes] | None:
        found = await keys_of(world)
        return found if len(found) > len(keys) else None

    with ApiProcess(settings, receipt_key_days="0.000001").serving():
        published = await until(rotated, "the new key is published")
    assert published[: len(keys)] == keys
    assert verify_receipt(content, published).verdict == "nothing_left"
    (rotation, *_) = await world.admin.audit.list(action="receipt_key.rotate").all()
    assert rotation.target.startswith("receipt_key/")
    _check_as_documented(tmp_path, content, keys)


def _refuses_every_change(content: bytes, keys: list[bytes]) -> None:
    for place in range(0, len(content), 7):
        flipped = content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]
        with pytest.raises(ReceiptRefused):
            verify_receipt(flipped, keys)
    document = json.loads(content)
    cut = json.loads(content)
    cut["receipt"]["probes"].pop()
    with pytest.raises(ProbesCut, match="cut: it has 1, and 2 were signed"):
        verify_receipt(_file(cut), keys)
    cut["receipt"]["probe_count"] = 1
    with pytest.raises(ReceiptChanged):
        verify_receipt(_file(cut), keys)
    document["receipt"]["instance"]["id"] = "ins_mine"
    with pytest.raises(ReceiptChanged):
        verify_receipt(_file(document), keys, instance="ins_mine")
    for odd in (b"", b"{}", b"[]", b'{"receipt":1,"signature":2}', b"\xff", json.dumps(json.loads(content)).encode()):
        with pytest.raises((NotAReceipt, ReceiptChanged)):
            verify_receipt(odd, keys)


def _file(document: dict[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def _check_as_documented(directory: Path, content: bytes, keys: list[bytes]) -> None:
    """The lines of the guide, as they are written, tell a good receipt from a changed one."""
    script = GUIDE.read_text().split("```sh\n# without our software\n")[1].split("```")[0]
    (directory / "key.pem").write_text(pem_of(keys[-1]))
    assert parse_keys(pem_of(keys[-1])) == [keys[-1]]
    for text, status in ((content, 0), (content.replace(b"getent", b"gotent"), 1)):
        (directory / "receipt.json").write_bytes(text)
        done = subprocess.run(["/bin/bash", "-ec", script], cwd=directory, capture_output=True, text=True, check=False)
        assert done.returncode == status, (done.stdout, done.stderr, sys.version)


async def test_what_a_probe_found_spoils_the_receipt(world: World) -> None:
    echo = await Echo.deployed(world, head=await world.allocation("one"))
    (member,) = await echo.members()
    # The app itself says that all is well.
    await decommission(echo, {"receipt": {"ok": True, "members": [entry(member, ok=False, found="/opt/echo")]}})
    document = (await signed(echo)).receipt
    assert (document["verdict"], document["left"]) == ("something_left", ["one: paths", "one: users"])


async def test_a_member_that_nobody_looked_at_spoils_the_receipt(world: World) -> None:
    echo = await Echo.deployed(world, head=await world.allocation("one"))
    (member,) = await echo.members()
    await decommission(echo, {"receipt": {"ok": True, "members": [5, {"allocation_id": 7}, "x"]}})
    document = (await signed(echo)).receipt
    assert document["verdict"] == "unverified"
    assert document["unverified"] == [f"member {member.id} on {member.allocation_id}: no probe was made"]


async def test_a_volume_and_an_access_that_stay_spoil_the_receipt(world: World, settings: Settings) -> None:
    one = await world.allocation("one")
    echo = await Echo.deployed(world, head=one)
    (member,) = await echo.members()
    volume = await world.admin.volumes.create(world.project.id, "data", size_gib=1)
    await world.admin.volumes.attach(volume.id, allocation_id=one.id, path="/data")
    await world.volume_at_rest(volume.id)
    with connect(settings) as database:
        # As a mistake of the platform would leave it: access that nobody ended.
        database.execute(
            """INSERT INTO access_grants (id, principal_id, allocation_ids, login, expires_at, owner_id,
                   reconciled_instance_id) VALUES (%s, 'sva_x', '{}', 'gpuaas', now() + interval '1 hour', 'x', %s)""",
            [f"canary-{echo.id}", echo.id],
        )
    await decommission(echo, {"receipt": {"ok": True, "members": [entry(member)]}})
    document = (await signed(echo)).receipt
    assert document["left"] == [f"platform: access: canary-{echo.id}"]
    assert document["unverified"] == ["platform: volumes: data at /data"]
    assert document["verdict"] == "something_left"


async def test_a_write_off_is_signed_and_says_what_was_not_verified(world: World) -> None:
    echo = await Echo.deployed(world, head=await world.allocation("one"))
    work = await echo.controller.claim((await echo.request("decommission")).id)
    await work.fail()
    await world.admin.instances.abandon(echo.id, "the rack was stolen")
    receipt = await signed(echo)
    document = receipt.receipt
    assert document["verdict"] == "unverified"
    assert document["write_off"]["reason"] == "the rack was stolen"
    assert "the instance was written off: the rack was stolen" in document["unverified"]
    assert {member["removal"] for member in document["members"]} == {"written_off"}
    assert verify_receipt(exported(receipt), await keys_of(world)).verdict == "unverified"


async def test_a_member_that_is_written_off_has_a_receipt_of_its_own(world: World) -> None:
    one, two = await world.allocation("one"), await world.allocation("two")
    echo = await Echo.deployed(world, two, head=one)
    (tail,) = await echo.tails()
    receipts = world.admin.receipts
    with pytest.raises(InvalidStateError, match="only one that was written off has one"):
        await receipts.of_member(tail.id)
    work = await echo.controller.claim((await echo.request("remove", tail)).id)
    looked = {"receipt": {"ok": False, "members": [entry(tail, ok=False, found="/opt/echo")]}}
    error = OperationError(code="teardown_incomplete", detail="not everything is gone", retryable=True)
    await work.client.operations.fail(work.operation_id, work.fencing_token, error, result=looked)
    await world.admin.members.forget(tail.id, "the disk is broken")

    async def is_signed() -> SignedReceipt | None:
        receipt = await receipts.of_member(tail.id)
        return receipt if receipt.state == ReceiptState.SIGNED else None

    receipt = await until(is_signed, "the receipt of the member is signed")
    document = receipt.receipt
    assert (document["instance"]["id"], document["member"]["id"]) == (echo.id, tail.id)
    assert document["write_off"]["reason"] == "the disk is broken"
    assert document["unverified"] == [f"member {tail.id} was written off: the disk is broken"]
    # What the failed removal had found stays said, and the secrets of an instance that lives on are no leftovers.
    assert (document["verdict"], document["left"]) == ("something_left", ["one: paths", "one: users"])
    assert [check["check"] for check in document["platform_checks"]] == ["volumes", "accounts", "firewall"]
    assert document["times"]["instance_ended_at"] is None
    assert verify_receipt(exported(receipt), await keys_of(world), instance=echo.id).receipt == document
    (issued,) = await world.admin.audit.list(tenant_id=world.tenant.id, action="receipt.issue", target=tail.id).all()
    assert issued.id == document["audit"]["entry_id"]
    with pytest.raises(InvalidStateError, match="has not ended"):
        await receipts.get(echo.id)

    (head,) = await echo.members()
    await decommission(echo, {"receipt": {"ok": True, "members": [entry(head)]}})
    whole = (await signed(echo)).receipt
    assert (whole["verdict"], "member" in whole) == ("unverified", False)
    assert whole["unverified"] == [f"member {tail.id} was written off: the disk is broken"]
    assert {m["id"]: m["removal"] for m in whole["members"]} == {head.id: "probed", tail.id: "written_off"}
    with pytest.raises(InvalidStateError, match="only one that was written off has one"):
        await receipts.of_member(head.id)


async def test_an_account_and_a_firewall_that_nobody_can_vouch_for_spoil_the_receipt(world: World) -> None:
    one = await world.allocation("one")
    echo = await Echo.deployed(world, head=one)
    (member,) = await echo.members()
    me = (await world.admin.principal()).id
    grant = await world.admin.grants.create(one.id, me)
    await world.grant_at_rest(grant.id)
    # The machine never says that the account is gone.
    world.node.holds = {"set_users"}
    await world.admin.grants.revoke(grant.id)
    work = await echo.controller.claim((await echo.request("decommission")).id)
    assert world.node.link is not None
    before = (await world.admin.nodes.get(world.node.node_id)).revision
    # The agent found it, told of it, and put it back, all while the instance was taken apart.
    for conditions in ([NodeCondition(kind="firewall", message="an element too many")], []):
        await world.node.link.send(NodeConditions(conditions=conditions).model_dump_json())

    async def is_over() -> bool:
        node = await world.admin.nodes.get(world.node.node_id)
        return node.conditions == [] and node.revision >= before + 2

    await until(is_over, "the node was impaired, and is as wanted again")
    result = {"receipt": {"ok": True, "members": [entry(member)]}}
    await work.client.operations.complete(
        work.operation_id, work.fencing_token, result=result, member_statuses={member.id: MemberStatus.REMOVED}
    )
    document = (await signed(echo)).receipt
    assert document["left"] == []
    assert document["unverified"] == [
        f"platform: accounts: {grant.login} on {one.id}",
        f"platform: firewall: {world.node.node_id}",
    ]
    assert document["verdict"] == "unverified"


async def test_what_a_crash_left_without_a_signature_is_signed(world: World, settings: Settings) -> None:
    echo = await Echo.deployed(world, head=await world.allocation("one"))
    (member,) = await echo.members()
    await decommission(echo, {"receipt": {"ok": True, "members": [entry(member)]}})
    before = await signed(echo)
    # As a process leaves it that ends between its intent and its signature.
    with connect(settings) as database:
        database.execute(
            "UPDATE receipts SET signature = NULL, key_id = NULL, signed_at = NULL WHERE instance_id = %s", [echo.id]
        )
    after = await signed(echo)
    assert after.receipt["probes"] == before.receipt["probes"]
    assert verify_receipt(exported(after), await keys_of(world)).verdict == "nothing_left"


async def test_the_keys_are_for_everybody(settings: Settings) -> None:
    """A log-in saves them before it has a token to show."""
    async with GpuaasClient(settings.api_url, StaticToken("")) as nobody:
        assert (await nobody.receipts.keys()).items
