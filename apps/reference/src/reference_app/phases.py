"""The named phases in which a member becomes what it should be. Each may be repeated."""

import asyncio
from dataclasses import dataclass

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Member
from gpuaas_sdk import OperationFailed, Phase, SecretValue, read_facts

from reference_app import software
from reference_app.cluster import TOKEN, Cluster
from reference_app.software import Role

POLL_SECONDS = 0.2
LARGEST_SKEW = 30.0


@dataclass(frozen=True, slots=True)
class Work:
    """One member of a cluster, and all that a phase is told about it."""

    cluster: Cluster
    member: Member

    @property
    def role(self) -> Role:
        return Role(self.member.component_key)

    async def token(self) -> SecretValue:
        return await self.cluster.operation.secret(TOKEN)


async def ensure_machine_fits(work: Work) -> JsonObject:
    facts = await read_facts(work.cluster.machine(work.member))
    if facts.init != "systemd":
        raise OperationFailed("no_systemd", f"{facts.hostname} does not run systemd")
    if abs(facts.clock_skew_seconds) > LARGEST_SKEW:
        detail = f"the clock of {facts.hostname} is {facts.clock_skew_seconds} s off"
        raise OperationFailed("clock_skew", detail, retryable=True)
    return {"os": f"{facts.os} {facts.os_version}", "cpus": facts.cpus, "memory_mib": facts.memory_mib}


async def ensure_recorded(work: Work) -> JsonObject:
    return await software.ensure_recorded(work.cluster.machine(work.member))


async def ensure_installed(work: Work) -> JsonObject:
    return await software.ensure_installed(work.cluster.machine(work.member), work.cluster.digest)


async def ensure_configured(work: Work) -> None:
    config = work.cluster.config(work.member)
    await software.ensure_configured(work.cluster.machine(work.member), work.role, config, await work.token())


async def ensure_running(work: Work) -> None:
    await software.ensure_running(work.cluster.machine(work.member), work.role)


async def ensure_proven(work: Work) -> JsonObject:
    """A controller answers as this instance; a worker has been heard by it. Nothing less counts as ready."""
    controller = work.cluster.controller_machine
    if work.role is Role.CONTROLLER:
        roll = await software.read_roll(controller)
        if roll["instance"] != work.cluster.instance.id:
            raise OperationFailed("port_taken", f"somebody else answers on port {work.cluster.inputs['port']}")
        return {"version": roll["version"], "motto": roll["motto"]}
    name = work.cluster.machine(work.member).hostname
    patience = 3 * int(work.cluster.inputs["beat_seconds"])
    while True:
        worker = await software.read_worker(controller, name)
        if worker is not None and worker["seconds_since_beat"] <= patience:
            return {"name": name, "state": worker["state"], "version": worker["version"]}
        await asyncio.sleep(POLL_SECONDS)


CHECK = Phase("check-machine", "Check the machine", ensure_machine_fits)
RECORD = Phase("record-before", "Record what was there before", ensure_recorded)
INSTALL = Phase("install-software", "Install the software", ensure_installed)
CONFIGURE = Phase("configure", "Write configuration and token", ensure_configured)
RUN = Phase("run", "Start the daemon", ensure_running)
PROVE = Phase("prove", "See it on the roll", ensure_proven)
ALL = (CHECK, RECORD, INSTALL, CONFIGURE, RUN, PROVE)
