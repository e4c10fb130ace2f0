"""Preflights: everything that stands in the way at once, and nothing changed by looking."""

import asyncio
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.serialization import SSHCertificate, load_ssh_public_identity

from gpuaas_contract.access import OBSERVER_LOGIN
from gpuaas_contract.allocations import Allocation, Shape
from gpuaas_contract.findings import Finding, FindingSource, Severity
from gpuaas_contract.instances import InstanceDeploy, Placement
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.operations import OperationCreate, OperationError
from gpuaas_contract.preflights import AppChecks, Preflight, PreflightState
from gpuaas_sdk import Controller
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import ServiceAccountCredentials
from gpuaas_sdk.errors import ForbiddenError, InvalidRequestError, InvalidStateError, NotFoundError, StaleLeaseError
from gpuaas_sdk.runtime.preflights import PreflightContext, preflight_handler
from gpuaas_stack.settings import Settings
from tests.support.database import connect, dump
from tests.support.leases import hold_lease
from tests.support.world import MANIFEST, World, make_key

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"


def request(world: World, *placements: tuple[str, str], **changes: Any) -> InstanceDeploy:
    fields: dict[str, Any] = {
        "project_id": world.project.id,
        "app_slug": world.app_slug,
        "name": "greeter",
        "placement_intent": [Placement(component_key=key, allocation_id=id) for key, id in placements],
    }
    return InstanceDeploy.model_validate(fields | changes)


async def publish(world: World, **changes: Any) -> None:
    """The app with checks of its own."""
    declared = [*MANIFEST["operations"], {"kind": "preflight", "title": "Look", "deadline_seconds": 20}]
    fields = {**MANIFEST, "slug": world.app_slug, "version": "1.1.0", "operations": declared, **changes}
    await world.admin.app_versions.publish(Manifest.model_validate(fields))


def codes(preflight: Preflight) -> list[tuple[str, str]]:
    return [(finding.pointer, finding.code) for finding in preflight.findings]


def connected(settings: Settings, world: World, *, seconds_ago: float = 0) -> None:
    with connect(settings) as connection:
        connection.execute(
            """INSERT INTO controller_presence VALUES (%s, now() - make_interval(secs => %s))
               ON CONFLICT (account_id) DO UPDATE SET seen_at = excluded.seen_at""",
            (world.account.id, seconds_ago),
        )


def tables(settings: Settings) -> str:
    """All that the database holds of the project's things, but for what a preflight itself is."""
    kept = ("allocations", "instances", "members", "operations", "usage_records", "access_grants")
    return "\n".join(
        line
        for line in dump(settings).splitlines()
        if line.startswith(tuple(f"INSERT INTO public.{name} " for name in kept))
    )


@pytest.mark.own_platform("it compares the whole database")
async def test_everything_is_found_at_once_and_nothing_is_changed(world: World, settings: Settings) -> None:
    needs = {**MANIFEST["components"][0], "requires_capacity_shape": {"cpus": 32, "gpus": 2}}
    await publish(world, components=[needs, MANIFEST["components"][1]])
    used, free = await world.allocation("used"), await world.allocation("free")
    await world.deploy(head=await _large(world), name="other")
    old = await world.admin.app_versions.get(world.app_slug, "1.0.0")
    assert old.version == "1.0.0"
    await world.admin.instances.deploy(request(world, ("head", used.id), version="1.0.0", name="first"))
    world.node.holds = {"create_slice"}
    waiting = await world.admin.allocations.create(world.project.id, "waiting")
    stranger = await _elsewhere(world)
    before = tables(settings)

    placed = [("head", used.id), ("head", free.id), ("tail", waiting.id), ("tail", stranger), ("what", free.id)]
    body = request(world, *placed, name="first", inputs={"greeting": 7, "more": 1})
    found = await world.admin.preflights.deploy(body)
    assert (found.state, found.app_checks, found.ok) == (PreflightState.DONE, AppChecks.NOT_RUN, False)
    assert sorted(codes(found)) == sorted(
        [
            ("/inputs", "inputs_invalid"),
            ("/inputs/greeting", "inputs_invalid"),
            ("/name", "name_taken"),
            ("/placement_intent", "count_out_of_range"),
            ("/placement_intent/0", "allocation_in_use"),
            ("/placement_intent/0", "shape_too_small"),
            ("/placement_intent/0", "too_few_gpus"),
            ("/placement_intent/1", "may_not_share_machine"),
            ("/placement_intent/1", "shape_too_small"),
            ("/placement_intent/1", "too_few_gpus"),
            ("/placement_intent/2", "allocation_not_active"),
            ("/placement_intent/3", "allocation_unknown"),
            ("/placement_intent/4", "component_unknown"),
            ("", "no_controller"),
            ("", "not_observable"),
        ]
    )
    assert all(finding.action for finding in found.findings if finding.severity == Severity.ERROR)
    assert tables(settings) == before, "looking changed something"
    # A deploy is refused by the same list.
    with pytest.raises(InvalidRequestError) as refused:
        await world.admin.instances.deploy(body)
    errors = [finding for finding in found.findings if finding.severity == Severity.ERROR]
    assert [(e.pointer, e.detail) for e in refused.value.errors] == [(e.pointer, e.message) for e in errors]
    assert tables(settings) == before

    unknown = await world.admin.preflights.deploy(request(world, ("head", free.id), app_slug="no-such-app"))
    assert (unknown.ok, unknown.findings[0].code) == (False, "version_unavailable")


async def _large(world: World) -> Allocation:
    made = await world.admin.allocations.create(world.project.id, "large", shape=Shape(cpus=32, gpus=2))
    return await world.at_rest(made.id)


async def _elsewhere(world: World) -> str:
    other = await world.admin.projects.create(world.tenant.id, "elsewhere")
    return (await world.admin.allocations.create(other.id, "theirs")).id


@pytest.mark.own_platform("it counts all controllers that were seen")
async def test_whether_a_controller_is_connected(world: World, settings: Settings) -> None:
    free = await world.allocation("free")
    body = request(world, ("head", free.id))
    (absent,) = (await world.admin.preflights.deploy(body)).findings
    assert (absent.code, absent.severity) == ("no_controller", Severity.WARNING)
    assert "never been connected" in absent.message
    await world.controller.operations.list(claimable=True).all()
    found = await world.admin.preflights.deploy(body)
    assert (found.findings, found.ok, found.app_checks) == ([], True, AppChecks.NOT_DECLARED)
    connected(settings, world, seconds_ago=120)
    (gone,) = (await world.admin.preflights.deploy(body)).findings
    assert "was last seen at" in gone.message
    assert (await world.admin.instances.deploy(body)).id, "a warning refuses nothing"
    with connect(settings) as connection:
        (writes,) = connection.execute("SELECT count(*) FROM controller_presence").fetchone() or (0,)
    assert writes == 1


async def test_the_apps_own_checks_by_its_controller(world: World) -> None:
    await publish(world)
    free = await world.allocation("free")
    looked: list[list[str]] = []

    async def look(context: PreflightContext) -> list[Finding]:
        looked.append(context.allocation_ids)
        assert context.preflight.request["name"] == "greeter"
        clash = Finding(severity=Severity.ERROR, code="port_taken", message="port 7 is taken", pointer="/inputs")
        return [clash, Finding(severity=Severity.WARNING, code="clock_skew", message="two seconds")]

    controller = Controller(
        world.controller, {"preflight": preflight_handler(look)}, machines=lambda client, claim: NoMachines()
    )
    running = asyncio.create_task(controller.run())
    try:
        await world.until(lambda: _is_connected(world, free), "the controller is connected")
        asked = await world.admin.preflights.deploy(request(world, ("head", free.id)))
        assert (asked.app_checks, asked.ok) == (AppChecks.RUNNING, None)
        done = await world.admin.preflights.get(asked.id, wait=20)
    finally:
        controller.stop()
        await running
    assert (done.state, done.app_checks, done.ok) == (PreflightState.DONE, AppChecks.DONE, False)
    assert [(f.code, f.source) for f in done.findings] == [
        ("port_taken", FindingSource.APP),
        ("clock_skew", FindingSource.APP),
    ]
    assert looked[-1] == [free.id]
    assert asked.operation_id is not None
    operation = await world.admin.operations.get(asked.operation_id)
    assert (operation.kind, operation.instance_id, operation.preflight_id) == ("preflight", None, asked.id)
    assert operation.allowed_actions == []
    with pytest.raises(InvalidStateError):
        await world.admin.operations.retry(operation.id)
    assert await world.admin.instances.list(project_id=world.project.id).all() == []


class NoMachines:
    async def prepare(self) -> None: ...

    def machine(self, allocation_id: str) -> Any:
        raise AssertionError("there is none")

    async def close(self) -> None: ...


async def _is_connected(world: World, free: Allocation) -> bool:
    found = await world.admin.preflights.deploy(request(world, ("head", free.id), name="probe", inputs={"no": 1}))
    return "no_controller" not in [finding.code for finding in found.findings]


async def test_a_look_is_all_that_its_lease_allows(world: World, settings: Settings) -> None:
    await publish(world)
    free, other = await world.allocation("free"), await world.allocation("other")
    connected(settings, world)
    asked = await world.admin.preflights.deploy(request(world, ("head", free.id)))
    assert asked.operation_id is not None
    work = world.controller.operations
    with pytest.raises(StaleLeaseError):
        await work.access(asked.operation_id, 1, PUBLIC_KEY)
    claim = await work.claim(asked.operation_id, "looker")
    lease = (asked.operation_id, claim.fencing_token)
    grant = await work.access(*lease, PUBLIC_KEY)
    assert grant.login == OBSERVER_LOGIN
    certificate = load_ssh_public_identity(grant.certificate.encode())
    assert isinstance(certificate, SSHCertificate)
    principal = f"{asked.operation_id}/{claim.fencing_token}"
    assert certificate.valid_principals == [principal.encode()]
    assert world.node.leases[-1].machines == {free.id: {OBSERVER_LOGIN: [principal]}}
    credential = await world.admin.credentials.create(world.project.id, "stored")
    for forbidden in (
        work.deliver(*lease, allocation_id=free.id, digest=f"sha256:{'0' * 64}"),
        world.controller.secrets.ensure(*lease, "key"),
        world.controller.credentials.deliver(credential.id, *lease),
    ):
        with pytest.raises(ForbiddenError, match="preflight"):
            await forbidden
    assert other.id not in grant.model_dump_json()
    # What is no list of findings is refused, and the operation goes on.
    with pytest.raises(InvalidRequestError) as refused:
        await work.complete(*lease, result={"findings": [{"severity": "odd"}]})
    assert {error.pointer for error in refused.value.errors} >= {"/result/findings/0/severity"}
    error = OperationError(code="broken", detail="the controller broke", retryable=True)
    await work.fail(*lease, error)
    done = await world.admin.preflights.get(asked.id)
    assert (done.app_checks, done.ok) == (AppChecks.FAILED, False)
    assert "the controller broke" in done.findings[-1].message
    with pytest.raises(StaleLeaseError):
        await work.access(*lease, PUBLIC_KEY)


async def test_checks_that_nobody_makes_end_with_a_finding(world: World, settings: Settings) -> None:
    await publish(world)
    free = await world.allocation("free")
    connected(settings, world)
    asked = await world.admin.preflights.deploy(request(world, ("head", free.id)))
    with connect(settings) as connection:
        connection.execute("UPDATE operations SET deadline = now() WHERE id = %s", (asked.operation_id,))
    done = await world.admin.preflights.get(asked.id, wait=20)
    assert (done.state, done.app_checks) == (PreflightState.DONE, AppChecks.FAILED)
    assert "no controller claimed" in done.findings[-1].message


async def test_of_a_request_on_an_instance(world: World, settings: Settings) -> None:
    lease = await hold_lease(world)
    before = tables(settings)
    good = await world.admin.preflights.instance(lease.instance_id, OperationCreate(kind="decommission"))
    assert (good.ok, good.kind, good.instance_id) == (True, "decommission", lease.instance_id)
    bad = await world.admin.preflights.instance(lease.instance_id, OperationCreate(kind="no-such-kind"))
    assert bad.ok is False
    wrong = await world.admin.preflights.instance(
        lease.instance_id, OperationCreate(kind="decommission", input={"what": 1})
    )
    assert codes(wrong) == [("/input", "inputs_invalid")]
    assert tables(settings) == before, "the request was taken back"
    assert (await world.controller.operations.heartbeat(*lease.both)).state == "running", "nothing was pre-empted"


async def test_who_may_ask_and_who_may_see(world: World) -> None:
    free = await world.allocation("free")
    body = request(world, ("head", free.id))
    asked = await world.admin.preflights.deploy(body)
    with pytest.raises(ForbiddenError):
        await world.controller.preflights.deploy(body)
    assert (await world.controller.preflights.get(asked.id)).id == asked.id
    private, public = make_key()
    account = await world.admin.service_accounts.create(
        world.project.id, "stranger", public, app_slug=await world.other_app()
    )
    async with GpuaasClient(world.admin.api_url, ServiceAccountCredentials(account.id, private)) as stranger:
        with pytest.raises(NotFoundError):
            await stranger.preflights.get(asked.id)
    other = await world.admin.projects.create(world.tenant.id, "elsewhere")
    private, public = make_key()
    account = await world.admin.service_accounts.create(other.id, "outside", public, app_slug=world.app_slug)
    async with GpuaasClient(world.admin.api_url, ServiceAccountCredentials(account.id, private)) as outside:
        with pytest.raises(NotFoundError):
            await outside.preflights.get(asked.id)
    token = (await world.admin.fetch_token()).access_token
    async with httpx.AsyncClient(base_url=world.admin.api_url, headers={"Authorization": f"Bearer {token}"}) as http:
        answer = await http.post("/v1/app-instances/preflight", json={**body.model_dump(mode="json"), "more": 1})
        assert answer.status_code == 422
