"""Every mutation of every noun is in the change feed, written by the same transaction.

Triggers note what each transaction writes. The walk calls every route that changes something; what it does not
call, and what may be written without a change, is listed here with its reason, and nowhere else."""

import secrets
from collections.abc import Awaitable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import httpx
import pytest
from fastapi.routing import APIRoute

from gpuaas_contract.app_usage import AppUsageReport
from gpuaas_contract.credentials import Credential
from gpuaas_contract.identity import Role
from gpuaas_contract.instances import InstanceDeploy, MemberStatus, Placement
from gpuaas_contract.nouns import Noun
from gpuaas_contract.operations import OperationCreate, OperationError, StepStatus
from gpuaas_contract.secrets import SecretKind, SecretSpec
from gpuaas_contract.volumes import VolumeAt
from gpuaas_platform.api.app import declare_app
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack.settings import Settings
from tests.support.artifacts import push, signing_key
from tests.support.database import connect
from tests.support.lifecycle import manifest
from tests.support.policy_world import PUBLIC_KEY
from tests.support.replays import OWN, Recorder, send_again, without_rights
from tests.support.world import World, make_key
from tests.support.writes import Transaction, Writes, tables

_HOST_CERTIFICATE = "a machine proves itself by another certificate of the same authority"
_AUTHORITY = "the authority itself tells of the change"
_LOGIN = "a login is its owner's alone and no noun of the feed; the audit trail holds it"
_TOKEN = "it turns what the caller shows into a token, and changes nothing that others could read"
NO_CHANGE = {
    "heartbeat_operation": "only the end of the lease moves, every few seconds",
    "grant_allocation_access": "a certificate for minutes that no route shows again; the audit trail holds it",
    "heartbeat_reconcile_lease": "only the end of the lease moves",
    "grant_observer_access": "a certificate for minutes that no route shows again; the audit trail holds it",
    "grant_operation_access": "a certificate for minutes that no route shows again; the audit trail holds it",
    "deliver_credential": "a wrapping token for a minute that no route shows again; the audit trail holds it",
    "deliver_secret": "a wrapping token for a minute that no route shows again; the audit trail holds it",
    "read_secret": "changes nothing; the audit trail holds it",
    "unwrap_secret": "uses a wrapping token up; the audit trail holds it",
    "certify_host": "signs an agent's key; nothing is stored",
    "log_in": _LOGIN,
    "open_session": _LOGIN,
    "end_session": _LOGIN,
    "end_one_session": _LOGIN,
    "start_device_authorization": _LOGIN,
    "approve_device": _LOGIN,
    "deny_device": _LOGIN,
    "revoke_token": _LOGIN,
    "log_in_on_device_page": _LOGIN,
    "decide_on_device_page": _LOGIN,
    "log_out_on_device_page": _LOGIN,
    "exchange_token": _TOKEN,
}
"""Routes that change something, or look like it, and write no change."""

NOT_KEPT = {"create_join_token", "enrol_node", "offer_agent_key"}
"""Mutations whose answers are kept for no idempotency key: a token that works once, and what agents ask."""

NOUN_OF = {
    "tenants": Noun.TENANT,
    "projects": Noun.PROJECT,
    "users": Noun.USER,
    "memberships": Noun.MEMBERSHIP,
    "service_accounts": Noun.SERVICE_ACCOUNT,
    "service_account_keys": Noun.SERVICE_ACCOUNT,
    "nodes": Noun.NODE,
    "join_tokens": Noun.JOIN_TOKEN,
    "allocations": Noun.ALLOCATION,
    "allocation_timeline": Noun.ALLOCATION,
    "app_versions": Noun.APP_VERSION,
    "entitlements": Noun.ENTITLEMENT,
    "registry_artifacts": Noun.ARTIFACT,
    "trusted_keys": Noun.TRUSTED_KEY,
    "instances": Noun.INSTANCE,
    "members": Noun.MEMBER,
    "operations": Noun.OPERATION,
    "operation_steps": Noun.OPERATION,
    "reconcile_leases": Noun.RECONCILE_LEASE,
    "preflights": Noun.PREFLIGHT,
    "app_usage": Noun.APP_USAGE,
    "bulks": Noun.BULK,
    "deliveries": Noun.DELIVERY,
    "usage_records": Noun.ALLOCATION,
    "quotas": Noun.QUOTA,
    "volumes": Noun.VOLUME,
    "volume_attachments": Noun.VOLUME,
    "credentials": Noun.CREDENTIAL,
    "secrets": Noun.SECRET,
    "grants": Noun.GRANT,
    "ssh_keys": Noun.SSH_KEY,
    "instance_people": Noun.INSTANCE,
}
"""A transaction that writes into the table tells the feed about the noun."""

NO_NOUN = {
    "receipts": "told by the instance that has ended; it is signed later",
    "member_receipts": "told by the member that was written off; it is signed later",
    "artifacts": "of the version before; nothing writes it any more",
    "changes": "the feed itself",
    "feed_marks": "the feed's own head and end",
    "instance_events": "the history of instances, written along with the feed itself",
    "request_records": "which requests were made; read by their correlation id, for a while",
    "audit_entries": "the audit trail is read as such, and only grows",
    "audit_batches": "the audit trail's seals",
    "audit_checkpoints": "the audit trail's seals",
    "idempotency_keys": "answers that are kept for repeated requests",
    "used_assertions": "what a caller showed once and must not show again",
    "ssh_authorities": "the first of an owner is made by whoever needs it; rotations tell of the others",
    "unix_users": "a person's number; the grants of the person tell of it",
    "unix_groups": "a project's number; the people of its instances tell of it",
    "access_grants": "certificates for minutes; no route shows them again",
    "lease_principals": "who may log in while a lease lasts; the lease tells of its beginning and end",
    "secret_versions": "intents and ends of values in OpenBao; the credential or secret tells of those in use",
    "secret_deliveries": "wrapping tokens for a minute; no route shows them again",
    "controller_presence": "when a controller was last heard of; it moves all the time",
    "node_tasks": "how an allocation is carried out; its allocation tells of it",
    "sessions": _LOGIN,
    "refresh_tokens": _LOGIN,
    "device_authorizations": _LOGIN,
    "failed_attempts": "how often a log-in failed; for an hour, and for nobody to see",
    "alembic_version": "the schema's own number",
}

NO_NEWS = {
    ("allocations", frozenset({"authority_newest"})): _AUTHORITY,
    ("allocations", frozenset({"authority_oldest"})): _AUTHORITY,
    ("allocations", frozenset({"authority_newest", "authority_oldest"})): _AUTHORITY,
    ("allocations", frozenset({"host_certificate_due_at"})): _HOST_CERTIFICATE,
    ("allocations", frozenset({"host_certificate_due_at", "host_certificate_expires_at"})): _HOST_CERTIFICATE,
    ("grants", frozenset({"task_id"})): "which task tells the machine of it",
    ("nodes", frozenset({"last_seen_at"})): "a heart-beat: whether the node is there is in its status",
    ("nodes", frozenset({"link_address", "link_id"})): "which process holds the agent's connection, and from where",
    ("nodes", frozenset({"link_id"})): "which process holds the agent's connection",
    ("operations", frozenset({"lease_expires_at"})): "a heart-beat of the lease's holder",
    ("operations", frozenset({"lease_expires_at", "updated_at"})): "a heart-beat of the lease's holder",
    ("reconcile_leases", frozenset({"expires_at"})): "a heart-beat of the lease's holder",
    ("members", frozenset({"last_operation_id", "updated_at"})): "told by the operation itself",
    ("service_account_keys", frozenset({"last_used_at"})): "each login moves it",
    ("tenants", frozenset({"network_index"})): "how its machines are reached is told by them",
    ("join_tokens", frozenset({"used_by_node_id"})): "told by the node that it enrolled",
}
"""Columns that move without a change."""


@pytest.fixture
def writes(settings: Settings) -> Iterator[Writes]:
    with connect(settings) as connection:
        strange = tables(connection) - set(NOUN_OF) - set(NO_NOUN)
        assert not strange, f"say in this file what changes of {strange} tell the feed"
        yield Writes(connection, set(NOUN_OF))


class Walk:
    def __init__(self, writes: Writes) -> None:
        self._writes = writes
        self.walked: set[str] = set()

    async def __call__(self, operation_id: str, noun: Noun, call: Awaitable[Any]) -> Any:
        """Await the call under a correlation id of its own, and look for its change."""
        correlation_id = f"walk-{operation_id}-{secrets.token_hex(3)}"
        with GpuaasClient.correlation(correlation_id):
            answer = await call
        found = self._writes.changes_of(correlation_id)
        assert noun in found, f"{operation_id} wrote changes of {found or 'nothing'}, not of {noun}"
        self.walked.add(operation_id)
        return answer


def mutations() -> set[str]:
    return {
        route.name
        for route in declare_app().routes
        if isinstance(route, APIRoute) and not (route.methods or set()) <= {"GET", "HEAD"}
    }


async def test_every_mutation_is_in_the_feed_and_answered_again_only_with_its_right(
    admin: GpuaasClient, writes: Writes, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk, recorder = Walk(writes), Recorder(declare_app(), monkeypatch)
    async with World.create(admin, secrets.token_hex(4)) as world:
        await walk_identity(walk, admin)
        await walk_nodes_and_catalogue(walk, admin, world)
        await walk_work(walk, world)
    missing = mutations() - walk.walked - set(NO_CHANGE)
    assert not missing, f"walk these too, or say in NO_CHANGE why they write no change: {sorted(missing)}"
    assert not set(NO_CHANGE) - mutations(), "exceptions for routes that are gone"
    assert not set(NO_CHANGE) & walk.walked
    silent = sorted({line for transaction in writes.transactions() for line in _untold(transaction)})
    assert not silent, "\n".join(silent)
    await replay_without_rights(recorder, walk.walked, settings)


async def replay_without_rights(recorder: Recorder, walked: set[str], settings: Settings) -> None:
    """Send every request once more, word for word and with its key, by callers who have lost every right since."""
    with connect(settings) as connection:
        kept = recorder.kept(connection)
        assert kept, "no answer was kept"
        async with httpx.AsyncClient() as http:
            last = next(request for request in reversed(kept) if request.permission not in OWN)
            assert "Idempotency-Replayed" in (await send_again(http, last)).headers
            told = []
            with without_rights(connection):
                for request in kept:
                    answer = await send_again(http, request)
                    # The walk gives back its own grant, which takes no right.
                    is_own = request.permission in OWN or request.operation_id == "revoke_grant"
                    if answer.status_code not in {401, 403, 404} and not is_own:
                        told.append(f"{request.operation_id}: {answer.status_code} {answer.text[:200]}")
    assert not told, "answered although the right was lost:\n" + "\n".join(told)
    missing = walked - {request.operation_id for request in kept}
    assert missing == NOT_KEPT, f"walk these too, or say why their answers are not kept: {sorted(missing ^ NOT_KEPT)}"


def _untold(transaction: Transaction) -> Iterator[str]:
    """List rows that a request wrote without a change in the feed."""
    for table, event, columns in transaction.writes:
        is_news = columns and (event != "UPDATE" or (table, columns) not in NO_NEWS)
        if is_news and NOUN_OF[table] not in transaction.nouns:
            told = ", ".join(sorted(transaction.nouns)) or "nothing"
            yield f"{event} of {table} ({', '.join(sorted(columns))}) in a transaction that tells of {told}"


async def walk_identity(walk: Walk, admin: GpuaasClient) -> None:
    tenant = await walk("create_tenant", Noun.TENANT, admin.tenants.create("walked"))
    await walk("update_tenant", Noun.TENANT, admin.tenants.update(tenant.id, title="Walked"))
    project = await walk("create_project", Noun.PROJECT, admin.projects.create(tenant.id, "walked"))
    await walk("update_project", Noun.PROJECT, admin.projects.update(project.id, title="Walked"))
    password = "a password to walk with"
    user = await walk("create_user", Noun.USER, admin.users.create("walker@example.com", password))
    role = admin.memberships.create(user.id, Role.PROJECT_ADMIN, project_id=project.id)
    membership = await walk("create_membership", Noun.MEMBERSHIP, role)
    await admin.memberships.create(user.id, Role.TENANT_ADMIN, tenant_id=tenant.id)
    async with GpuaasClient(admin.api_url, PasswordCredentials(user.email, password)) as own:
        changing = own.sessions.change_password(password, "another password to walk with")
        await walk("change_own_password", Noun.USER, changing)
    account = await walk(
        "create_service_account", Noun.SERVICE_ACCOUNT, admin.service_accounts.create(project.id, "walker")
    )
    key = admin.service_accounts.add_key(account.id, make_key()[1])
    key = await walk("add_service_account_key", Noun.SERVICE_ACCOUNT, key)
    await walk("add_service_account_secret", Noun.SERVICE_ACCOUNT, admin.service_accounts.add_secret(account.id))
    revoking = admin.service_accounts.revoke_key(account.id, key.id)
    await walk("revoke_service_account_key", Noun.SERVICE_ACCOUNT, revoking)
    disabling = admin.service_accounts.update(account.id, disabled=True)
    await walk("update_service_account", Noun.SERVICE_ACCOUNT, disabling)
    await walk("delete_service_account", Noun.SERVICE_ACCOUNT, admin.service_accounts.delete(account.id))
    await walk("update_user", Noun.USER, admin.users.update(user.id, disabled=True))
    await walk("delete_membership", Noun.MEMBERSHIP, admin.memberships.delete(membership.id))
    await walk("delete_user", Noun.USER, admin.users.delete(user.id))
    other = await admin.users.create("other@example.com", password)
    await admin.memberships.create(other.id, Role.PROJECT_VIEWER, project_id=project.id)
    await walk("delete_project", Noun.PROJECT, admin.projects.delete(project.id))
    await walk("delete_tenant", Noun.TENANT, admin.tenants.delete(tenant.id))


async def walk_nodes_and_catalogue(walk: Walk, admin: GpuaasClient, world: World) -> None:
    join = await walk("create_join_token", Noun.JOIN_TOKEN, admin.join_tokens.create("walked"))
    enrolled = await walk("enrol_node", Noun.NODE, admin.nodes.enrol(join.token, make_key()[1]))
    node = enrolled.node_id
    await walk("cordon_node", Noun.NODE, admin.nodes.cordon(node))
    await walk("uncordon_node", Noun.NODE, admin.nodes.uncordon(node))
    await walk("drain_node", Noun.NODE, admin.nodes.drain(node))
    await walk("rotate_node_identity", Noun.NODE, admin.nodes.rotate_identity(node))
    await walk("revoke_node_identity", Noun.NODE, admin.nodes.revoke_identity(node))
    await walk("retire_node", Noun.NODE, admin.nodes.retire(node))
    await walk("offer_agent_key", Noun.NODE, world.node.offer_key(make_key()[1]))
    version = await admin.app_versions.get(world.app_slug)
    newer = version.manifest.model_copy(update={"version": "1.0.1"})
    newer = await walk("publish_app_version", Noun.APP_VERSION, admin.app_versions.publish(newer))
    await walk("deprecate_app_version", Noun.APP_VERSION, admin.app_versions.deprecate(newer.id))
    await walk("retire_app_version", Noun.APP_VERSION, admin.app_versions.retire(newer.id))
    other = await admin.tenants.create("entitled")
    granting = admin.entitlements.grant(other.id, world.app_slug)
    entitlement = await walk("create_entitlement", Noun.ENTITLEMENT, granting)
    await walk("delete_entitlement", Noun.ENTITLEMENT, admin.entitlements.revoke(entitlement.id))


async def walk_work(walk: Walk, world: World) -> None:
    admin, work = world.admin, world.controller.operations
    first = await walk("create_allocation", Noun.ALLOCATION, admin.allocations.create(world.project.id, "first"))
    several = admin.allocations.create_batch(world.project.id, "several", 2)
    await walk("create_allocation_batch", Noun.ALLOCATION, several)
    head = await world.allocation("head")
    credentials = admin.credentials
    key = await walk("create_credential", Noun.CREDENTIAL, credentials.create(world.project.id, "walked"))
    instance = await walk("deploy_instance", Noun.INSTANCE, world.deploy(head=head, access=key))
    (operation_id,) = await world.claimable()
    claim = await walk("claim_operation", Noun.OPERATION, work.claim(operation_id, "walker"))
    await walk("yield_operation", Noun.OPERATION, work.yield_lease(operation_id, claim.fencing_token))
    claim = await work.claim(operation_id, "walker")
    token = claim.fencing_token
    step = work.report_step(operation_id, token, key="walk", title="Walk", status=StepStatus.RUNNING)
    await walk("report_step", Noun.OPERATION, step)
    await work.heartbeat(operation_id, token)
    lease = _Lease(operation_id, token)
    await walk(
        "report_instance", Noun.INSTANCE, world.controller.instances.report(instance.id, lease, observed_runtime="7")
    )
    member = (await admin.instances.members(instance.id).all())[0]
    reporting = world.controller.members.report(member.id, lease, status=MemberStatus.READY)
    await walk("report_member", Noun.MEMBER, reporting)
    await walk_observing(walk, world, instance.id)
    digest = await walk_artifacts(walk, admin, world.app_slug)
    delivering = work.deliver(operation_id, token, allocation_id=head.id, digest=digest)
    await walk("request_delivery", Noun.DELIVERY, delivering)
    await walk_secrets(walk, world, key, (operation_id, token))
    error = OperationError(code="walked", detail="on purpose", retryable=True)
    await walk("fail_operation", Noun.OPERATION, work.fail(operation_id, token, error))
    await walk("retry_operation", Noun.OPERATION, admin.operations.retry(operation_id))
    claim = await work.claim(operation_id, "walker")
    await walk("complete_operation", Noun.OPERATION, work.complete(operation_id, claim.fencing_token))
    await walk_members(walk, world)
    ending = await walk("request_operation", Noun.OPERATION, admin.instances.request(instance.id, "decommission"))
    claim = await work.claim(ending.id, "walker")
    await work.complete(ending.id, claim.fencing_token, member_statuses={member.id: MemberStatus.REMOVED})
    await walk_allocation(walk, world, first.id)
    await walk_volume(walk, world, first.id)
    await walk_grants(walk, world, first.id)
    authorities = admin.ssh_authorities
    for _ in range(2):
        await walk("rotate_ssh_authority", Noun.SSH_AUTHORITY, authorities.rotate(world.project.id))
    await walk("retire_ssh_authority", Noun.SSH_AUTHORITY, authorities.retire(world.project.id, force=True))
    await walk("release_allocation", Noun.ALLOCATION, admin.allocations.release(first.id))


async def walk_members(walk: Walk, world: World) -> None:
    """Of another instance of another app version, which has all kinds of operations."""
    admin, work = world.admin, world.controller.operations
    modes = [{"key": key, "title": key} for key in ("first", "other")]
    await admin.app_versions.publish(manifest(world.app_slug, modes=modes))
    machine, second = await world.allocation("walked-head"), await world.allocation("walked-tail")
    walked = await world.deploy(head=machine, name="walked")
    deploy = next(op for op in await admin.operations.list(instance_id=walked.id).all())
    claim = await work.claim(deploy.id, "walker")
    await work.complete(deploy.id, claim.fencing_token)
    await walk("update_instance", Noun.INSTANCE, admin.instances.update(walked.id, mode="other"))
    await walk("add_members", Noun.BULK, admin.instances.add_members(walked.id, "tail", [second.id]))
    adding = next(op for op in await admin.operations.list(instance_id=walked.id).all() if op.kind == "add")
    claim = await work.claim(adding.id, "walker")
    tail = str(adding.member_id)
    await work.complete(adding.id, claim.fencing_token, member_statuses={tail: MemberStatus.READY})
    tuning = admin.instances.request_on_members(walked.id, "tune", [tail])
    bulk = await walk("request_member_operations", Noun.BULK, tuning)
    tune_id = str(bulk.results[0].operation_id)
    claim = await work.claim(tune_id, "walker")
    await walk("cancel_operation", Noun.OPERATION, admin.operations.cancel(tune_id))
    stopping = work.end_cancelled(tune_id, claim.fencing_token)
    await walk("end_cancelled_operation", Noun.OPERATION, stopping)
    removal = await admin.instances.request(walked.id, "remove", member_id=tail)
    error = OperationError(code="walked", detail="on purpose", retryable=True)
    claim = await work.claim(removal.id, "walker")
    await work.fail(removal.id, claim.fencing_token, error)
    await walk("forget_member", Noun.MEMBER, admin.members.forget(tail, "on purpose"))
    ending = await admin.instances.request(walked.id, "decommission")
    claim = await work.claim(ending.id, "walker")
    await work.fail(ending.id, claim.fencing_token, error)
    await walk("abandon_instance", Noun.INSTANCE, admin.instances.abandon(walked.id, "on purpose"))


async def walk_observing(walk: Walk, world: World, instance_id: str) -> None:
    leases = world.controller.reconcile_leases
    claim = await walk("claim_reconcile_lease", Noun.RECONCILE_LEASE, leases.claim(instance_id, "walker"))
    await leases.heartbeat(instance_id, claim.fencing_token)
    giving_back = leases.yield_lease(instance_id, claim.fencing_token)
    await walk("yield_reconcile_lease", Noun.RECONCILE_LEASE, giving_back)
    (member,) = await world.admin.instances.members(instance_id).all()
    request = InstanceDeploy(
        project_id=world.project.id,
        app_slug=world.app_slug,
        name="later",
        placement_intent=[Placement(component_key="head", allocation_id=member.allocation_id)],
    )
    looking = world.admin.preflights
    await walk("preflight_deploy", Noun.PREFLIGHT, looking.deploy(request))
    ending = OperationCreate(kind="decommission")
    await walk("preflight_instance", Noun.PREFLIGHT, looking.instance(instance_id, ending))
    now = datetime.now(UTC)
    used = AppUsageReport(
        record_id="1", work_id="walk", subject="walker", quantity=Decimal(1), unit="steps", started_at=now, ended_at=now
    )
    await walk("report_app_usage", Noun.APP_USAGE, world.controller.app_usage.report(instance_id, [used]))


async def walk_allocation(walk: Walk, world: World, allocation_id: str) -> None:
    machines = world.admin.allocations
    await walk("set_quota", Noun.QUOTA, world.admin.quotas.set(world.project.id, cpus=1000))
    await walk("update_allocation", Noun.ALLOCATION, machines.update(allocation_id, name="renamed"))
    await world.at_rest(allocation_id)
    await walk("restart_allocation", Noun.ALLOCATION, machines.restart(allocation_id))
    await world.at_rest(allocation_id)
    await walk("resize_allocation", Noun.ALLOCATION, machines.resize(allocation_id, cpus=2))
    await world.at_rest(allocation_id)
    world.node.fails = {"create_slice"}
    failed = await world.allocation("failing")
    world.node.fails = set()
    await walk("retry_allocation", Noun.ALLOCATION, machines.retry(failed.id))


async def walk_volume(walk: Walk, world: World, allocation_id: str) -> None:
    volumes = world.admin.volumes
    made = await walk("create_volume", Noun.VOLUME, volumes.create(world.project.id, "walked", size_gib=1))
    world.node.fails = {"attach_volume"}
    attaching = volumes.attach(made.id, allocation_id=allocation_id, path="/home/walked")
    await walk("attach_volume", Noun.VOLUME, attaching)
    await world.volume_at_rest(made.id)
    world.node.fails = set()
    await walk("retry_volume", Noun.VOLUME, volumes.retry(made.id))
    await world.volume_at_rest(made.id)
    with_one = world.admin.allocations.create(
        world.project.id, "with-volume", volumes=[VolumeAt(volume_id=made.id, path="/home")]
    )
    second = await walk("create_allocation", Noun.VOLUME, with_one)
    await world.at_rest(second.id)
    await world.admin.allocations.release(second.id)
    await world.at_rest(second.id)
    await walk("detach_volume", Noun.VOLUME, volumes.detach(made.id, allocation_id=allocation_id))
    await world.volume_at_rest(made.id)
    await walk("delete_volume", Noun.VOLUME, volumes.delete(made.id))
    await world.volume_at_rest(made.id)


async def walk_secrets(walk: Walk, world: World, made: Credential, lease: tuple[str, int]) -> None:
    credentials, secrets = world.admin.credentials, world.controller.secrets
    await walk("rotate_credential", Noun.CREDENTIAL, credentials.rotate(made.id))
    await walk("end_credential_version", Noun.CREDENTIAL, credentials.end_version(made.id, 1))
    delivery = await world.controller.credentials.deliver(made.id, *lease)
    assert delivery.wrapping_token is not None
    await world.controller.secret_deliveries.unwrap(delivery.id, delivery.wrapping_token)
    await walk("revoke_credential", Noun.CREDENTIAL, credentials.revoke(made.id))
    await walk("delete_credential", Noun.CREDENTIAL, credentials.delete(made.id))
    ensuring = secrets.ensure(*lease, "walked", SecretSpec(kind=SecretKind.BYTES))
    secret = await walk("ensure_secret", Noun.SECRET, ensuring)
    await walk("rotate_secret", Noun.SECRET, world.admin.secrets.rotate(secret.id))
    await secrets.deliver(secret.id, *lease)


async def walk_grants(walk: Walk, world: World, allocation_id: str) -> None:
    """Also what others than a request do to them: the machine's answers, and the end of what they depend on."""
    admin = world.admin
    me = (await admin.principal()).id
    key = await walk("add_ssh_key", Noun.SSH_KEY, admin.ssh_keys.add("walked", PUBLIC_KEY))
    made = await walk("create_grant", Noun.GRANT, admin.grants.create(allocation_id, me))
    await world.grant_at_rest(made.id)
    await walk("remove_ssh_key", Noun.SSH_KEY, admin.ssh_keys.remove(key.id))
    await walk("revoke_grant", Noun.GRANT, admin.grants.revoke(made.id))
    await world.grant_at_rest(made.id)
    user = await admin.users.create("granted@example.com", "a password to walk with")
    await admin.memberships.create(user.id, Role.PROJECT_MEMBER, project_id=world.project.id)
    await admin.grants.create(allocation_id, user.id)
    async with GpuaasClient(admin.api_url, PasswordCredentials(user.email, "a password to walk with")) as own:
        await own.ssh_keys.add("walked", PUBLIC_KEY)
    await walk("delete_user", Noun.SSH_KEY, admin.users.delete(user.id))
    await walk("create_grant", Noun.GRANT, admin.grants.create(allocation_id, me))


class _Lease:
    def __init__(self, operation_id: str, fencing_token: int) -> None:
        self.operation_id = operation_id
        self.fencing_token = fencing_token


async def walk_artifacts(walk: Walk, admin: GpuaasClient, slug: str) -> str:
    key = signing_key()
    adding = admin.trusted_keys.add("walked", key.public, app_slug=slug)
    trusted = await walk("add_trusted_key", Noun.TRUSTED_KEY, adding)
    pushing = push(admin, secrets.token_bytes(100), app_slug=slug, sign_key=key.private)
    made = await walk("register_artifact", Noun.ARTIFACT, pushing)
    await walk("verify_artifact", Noun.ARTIFACT, admin.artifacts.verify(made.id))
    await walk("promote_artifact", Noun.ARTIFACT, admin.artifacts.promote(made.id))
    other = await push(admin, secrets.token_bytes(100), app_slug=slug)
    await walk("retire_artifact", Noun.ARTIFACT, admin.artifacts.retire(other.id))
    await walk("delete_artifact", Noun.ARTIFACT, admin.artifacts.delete(other.id))
    await walk("delete_trusted_key", Noun.TRUSTED_KEY, admin.trusted_keys.delete(trusted.id))
    return str(made.digest)
