"""The named phases in which a member becomes what it should be. Each may be repeated."""

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
    facts = await read_facts(work.cluster.machine(work.member), software.READ_PERL)
    if facts.init != "systemd":
        raise OperationFailed("no_systemd", f"{facts.hostname} does not run systemd")
    if "perl" not in facts.more:
        raise OperationFailed("no_perl", f"{facts.hostname} lacks Perl or one of its modules that the software needs")
    if abs(facts.clock_skew_seconds) > LARGEST_SKEW:
        detail = f"the clock of {facts.hostname} is {facts.clock_skew_seconds} s off"
        raise OperationFailed("clock_skew", detail, retryable=True)
    return {"os": f"{facts.os} {facts.os_version}", "cpus": facts.cpus, "memory_mib": facts.memory_mib}


async def ensure_recorded(work: Work) -> JsonObject:
    return await software.ensure_recorded(work.cluster.machine(work.member), work.role)


async def ensure_installed(work: Work) -> JsonObject:
    return await software.ensure_installed(work.cluster.machine(work.member), work.cluster.digest)


async def ensure_configured(work: Work) -> None:
    config = work.cluster.config(work.member)
    await software.ensure_configured(work.cluster.machine(work.member), work.role, config, await work.token())


async def ensure_running(work: Work) -> None:
    await software.ensure_running(work.cluster.machine(work.member), work.role)


async def ensure_proven(work: Work) -> JsonObject:
    """A controller answers as this instance; a worker has been heard by it. Nothing less counts as ready."""
    controller, wait_for = work.cluster.controller_machine, work.cluster.operation.wait_for
    if work.role is Role.CONTROLLER:
        roll = await wait_for("the controller to listen", lambda: software.read_roll(controller), every=POLL_SECONDS)
        if roll["instance"] != work.cluster.instance.id:
            raise OperationFailed("port_taken", f"somebody else answers on port {work.cluster.inputs['port']}")
        return {"version": roll["version"], "motto": roll["motto"]}
    name = work.cluster.machine(work.member).hostname
    patience = 3 * int(work.cluster.inputs["beat_seconds"])

    async def heard() -> JsonObject | None:
        worker = await software.read_worker(controller, name)
        if worker is None or worker["seconds_since_beat"] > patience:
            return None
        return {"name": name, "state": worker["state"], "version": worker["version"]}

    return await wait_for(f"{name} to be heard by the controller", heard, every=POLL_SECONDS)


CHECK = Phase("check-machine", "Check the machine", ensure_machine_fits)
RECORD = Phase("record", "Record what is brought", ensure_recorded)
INSTALL = Phase("install-software", "Install the software", ensure_installed)
CONFIGURE = Phase("configure", "Write configuration and token", ensure_configured)
RUN = Phase("run", "Start the daemon", ensure_running)
PROVE = Phase("prove", "See it on the roll", ensure_proven)
ALL = (CHECK, RECORD, INSTALL, CONFIGURE, RUN, PROVE)
