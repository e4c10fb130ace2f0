"""The reconcile lease: one controller looks after an instance, and looking is all that it may do by it."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.serialization import SSHCertificate, load_ssh_public_identity

from gpuaas_contract.access import OBSERVER_LOGIN
from gpuaas_contract.instances import AccessNote, Condition, ConditionStatus, MemberStatus
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.reconcile import ReconcileClaim
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import ServiceAccountCredentials
from gpuaas_sdk.errors import (
    ForbiddenError,
    InvalidRequestError,
    InvalidStateError,
    LeaseHeldError,
    NotFoundError,
    StaleLeaseError,
)
from gpuaas_stack.settings import Settings
from tests.support.database import audited, connect
from tests.support.leases import decommission, hold_lease
from tests.support.world import MANIFEST, World, make_key

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"


class Observer:
    """The reconcile lease, as a report carries it."""

    operation_id = None

    def __init__(self, claim: ReconcileClaim) -> None:
        self.fencing_token = claim.fencing_token


def condition(status: ConditionStatus = ConditionStatus.TRUE, kind: str = "Healthy") -> list[Condition]:
    return [Condition(type=kind, status=status, observed_generation=1)]


def expire(settings: Settings, instance_id: str) -> None:
    with connect(settings) as connection:
        connection.execute(
            "UPDATE reconcile_leases SET expires_at = now() - interval '1 second' WHERE instance_id = %s",
            (instance_id,),
        )


def is_cut(settings: Settings, grant_id: str) -> bool:
    """List the ended access by which the platform cuts open streams."""
    with connect(settings) as connection:
        row = connection.execute(
            """SELECT g.ended_at IS NOT NULL OR r.expires_at < now() FROM access_grants g
               LEFT JOIN reconcile_leases r ON r.instance_id = g.reconciled_instance_id WHERE g.id = %s""",
            (grant_id,),
        ).fetchone()
    return bool(row and row[0])


async def test_of_many_controllers_one_leads_and_its_successor_has_a_larger_token(
    world: World, settings: Settings
) -> None:
    instance = await world.deploy(head=await world.allocation())
    leases = world.controller.reconcile_leases
    answers = await asyncio.gather(
        *(leases.claim(instance.id, f"process-{number}") for number in range(6)), return_exceptions=True
    )
    (first,) = [answer for answer in answers if isinstance(answer, ReconcileClaim)]
    assert {type(answer) for answer in answers} == {ReconcileClaim, LeaseHeldError}
    seen = (await world.admin.instances.get(instance.id)).reconcile_lease
    assert seen is not None
    assert (seen.holder, seen.expired) == (first.lease.holder, False)
    assert seen.expires_at > datetime.now(UTC) + timedelta(seconds=first.lease_seconds / 2)

    expire(settings, instance.id)
    seen = (await world.admin.instances.get(instance.id)).reconcile_lease
    assert seen is not None
    assert seen.expired, "an operator sees that its holder is silent"
    with pytest.raises(StaleLeaseError):
        await leases.heartbeat(instance.id, first.fencing_token)
    second = await leases.claim(instance.id, "successor")
    assert second.fencing_token > first.fencing_token
    for stale in (
        leases.heartbeat(instance.id, first.fencing_token),
        leases.yield_lease(instance.id, first.fencing_token),
        leases.access(instance.id, first.fencing_token, PUBLIC_KEY),
        world.controller.instances.report(instance.id, Observer(first), conditions=condition()),
    ):
        with pytest.raises(StaleLeaseError):
            await stale
    shown = [c.type for c in (await world.admin.instances.get(instance.id)).conditions]
    assert "Healthy" not in shown
    assert (await leases.heartbeat(instance.id, second.fencing_token)).holder == "successor"
    await leases.yield_lease(instance.id, second.fencing_token)
    assert (await world.admin.instances.get(instance.id)).reconcile_lease is None
    assert (await leases.claim(instance.id, "third")).fencing_token > second.fencing_token
    assert len(audited(settings, "reconcile_lease.claim", world.account.id)) == 3
    assert len(audited(settings, "reconcile_lease.end", world.account.id)) == 1


async def test_an_observer_says_what_it_saw_and_changes_nothing_else(world: World) -> None:
    lease = await hold_lease(world)
    instance_id, controller = lease.instance_id, world.controller
    (member,) = await world.admin.instances.members(instance_id).all()
    observer = Observer(await controller.reconcile_leases.claim(instance_id, "observer"))
    detail = {"sees": "all of it"}
    await controller.members.report(member.id, observer, conditions=condition(), adapter_detail=detail)
    found = await controller.instances.report(instance_id, observer, conditions=condition(), observed_runtime="7.1")
    assert found.versions.observed_runtime == "7.1"
    shown = await world.admin.members.get(member.id)
    assert (shown.adapter_detail, shown.status, shown.conditions[0].type) == (detail, member.status, "Healthy")

    # The same again is no news: neither a revision nor a change.
    again = await controller.instances.report(instance_id, observer, conditions=condition(), observed_runtime="7.1")
    assert again.revision == found.revision
    await controller.members.report(member.id, observer, conditions=condition(), adapter_detail=detail)
    assert (await world.admin.members.get(member.id)).revision == shown.revision
    worse = await controller.instances.report(instance_id, observer, conditions=condition(ConditionStatus.FALSE))
    assert worse.revision == found.revision + 1

    with pytest.raises(ForbiddenError, match="lease of an operation"):
        await controller.members.report(member.id, observer, status=MemberStatus.FAILED)
    with pytest.raises(ForbiddenError, match="lease of an operation"):
        await controller.instances.report(instance_id, observer, access_notes=[AccessNote(title="in")])
    assert (await world.admin.members.get(member.id)).status == member.status
    # Its token opens nothing that an operation's lease does.
    for forbidden in (
        controller.operations.access(lease.operation_id, observer.fencing_token, PUBLIC_KEY),
        controller.operations.heartbeat(lease.operation_id, observer.fencing_token),
        controller.secrets.ensure(lease.operation_id, observer.fencing_token, "key"),
    ):
        with pytest.raises(StaleLeaseError):
            await forbidden


async def test_a_certificate_for_exactly_the_instances_machines_ends_with_the_lease(
    world: World, settings: Settings
) -> None:
    one, two = await world.allocation("one"), await world.allocation("two")
    other = await world.allocation("other")
    await world.deploy(head=other, name="other")
    instance = await world.deploy(two, head=one)
    leases = world.controller.reconcile_leases
    claim = await leases.claim(instance.id, "observer")
    grant = await leases.access(instance.id, claim.fencing_token, PUBLIC_KEY)
    assert grant.login == OBSERVER_LOGIN
    assert {machine.allocation_id for machine in grant.machines} == {one.id, two.id}
    certificate = load_ssh_public_identity(grant.certificate.encode())
    assert isinstance(certificate, SSHCertificate)
    principal = f"{instance.id}/{claim.fencing_token}"
    assert certificate.valid_principals == [principal.encode()], "nobody but the holder of this lease"
    told = world.node.leases[-1].machines
    expected = {machine: {OBSERVER_LOGIN: [principal]} for machine in (one.id, two.id)}
    assert told == expected, "no machine but these, no user but the observer"
    assert certificate.valid_before - certificate.valid_after < 180

    assert not is_cut(settings, grant.id)
    expire(settings, instance.id)
    assert is_cut(settings, grant.id), "the stream of a silent holder is cut"
    claim = await leases.claim(instance.id, "observer")
    grant = await leases.access(instance.id, claim.fencing_token, PUBLIC_KEY)
    await leases.yield_lease(instance.id, claim.fencing_token)
    assert is_cut(settings, grant.id)
    assert len(audited(settings, "access.grant", world.account.id)) == 2

    claim = await leases.claim(instance.id, "observer")
    grant = await leases.access(instance.id, claim.fencing_token, PUBLIC_KEY)
    await decommission(world, instance.id)
    assert is_cut(settings, grant.id), "nothing outlives the instance"
    with pytest.raises(StaleLeaseError):
        await leases.heartbeat(instance.id, claim.fencing_token)
    with pytest.raises(InvalidStateError):
        await leases.claim(instance.id, "too-late")


async def test_only_the_apps_own_account_in_its_scope(world: World) -> None:
    instance = await world.deploy(head=await world.allocation())
    with pytest.raises(ForbiddenError):
        await world.admin.reconcile_leases.claim(instance.id, "a-person")
    private, public = make_key()
    account = await world.admin.service_accounts.create(
        world.project.id, "stranger", public, app_slug=await world.other_app()
    )
    async with GpuaasClient(world.admin.api_url, ServiceAccountCredentials(account.id, private)) as stranger:
        with pytest.raises(NotFoundError):
            await stranger.reconcile_leases.claim(instance.id, "stranger")
    project = await world.admin.projects.create(world.tenant.id, "elsewhere")
    private, public = make_key()
    account = await world.admin.service_accounts.create(project.id, "same-app", public, app_slug=world.app_slug)
    async with GpuaasClient(world.admin.api_url, ServiceAccountCredentials(account.id, private)) as outside:
        with pytest.raises(NotFoundError):
            await outside.reconcile_leases.claim(instance.id, "outside")
    claim = await world.controller.reconcile_leases.claim(instance.id, "own")
    with pytest.raises(InvalidRequestError):
        await world.controller.reconcile_leases.access(instance.id, claim.fencing_token, "ssh-ed25519 AAAA")


async def test_a_repair_that_the_app_starts_itself_is_an_operation(world: World) -> None:
    declared = [*MANIFEST["operations"], {"kind": "recover", "title": "Recover"}, {"kind": "stop", "title": "Stop"}]
    fields = {**MANIFEST, "slug": world.app_slug, "version": "1.1.0", "operations": declared}
    await world.admin.app_versions.publish(Manifest.model_validate(fields))
    lease = await hold_lease(world)
    (member,) = await world.admin.instances.members(lease.instance_id).all()
    ready = {member.id: MemberStatus.READY}
    await world.controller.operations.complete(*lease.both, member_statuses=ready)
    repair = await world.controller.instances.request(lease.instance_id, "recover", member_id=member.id)
    assert (repair.requested_by, repair.kind) == (world.account.id, "recover")
    for kind in ("stop", "decommission"):
        with pytest.raises(ForbiddenError):
            await world.controller.instances.request(lease.instance_id, kind)
    private, public = make_key()
    account = await world.admin.service_accounts.create(
        world.project.id, "stranger", public, app_slug=await world.other_app()
    )
    async with GpuaasClient(world.admin.api_url, ServiceAccountCredentials(account.id, private)) as stranger:
        with pytest.raises(NotFoundError):
            await stranger.instances.request(lease.instance_id, "recover", member_id=member.id)
