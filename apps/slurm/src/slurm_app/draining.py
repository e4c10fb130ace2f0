"""Draining a node: no new jobs, wait for those that run, and end them only where somebody asked for exactly that."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gpuaas_contract.base import JsonObject
from gpuaas_sdk.machines.base import Machine
from slurm_app.errors import NotReadyError, RefusedError
from slurm_app.slurm import nodes

Say = Callable[[str], Awaitable[None]]
POLL_SECONDS = 0.5
SECONDS_AFTER_FORCE = 60.0
_SHOWN_JOBS = 20


@dataclass(frozen=True, slots=True)
class DrainRequest:
    timeout_seconds: float
    force: bool
    why: str

    @classmethod
    def of(cls, wanted: JsonObject, host: str, why: str) -> "DrainRequest":
        force = bool(wanted.get("force", False))
        if force and wanted.get("confirm") != host:
            raise RefusedError(
                "not_confirmed",
                f"cannot force the drain of {host} unconfirmed: it ends the jobs that run there when the time is up. "
                f"Confirm it with confirm: {host}",
                member_usable=True,
            )
        return cls(float(wanted.get("timeout_seconds", 600)), force, why)


class StillBusyError(NotReadyError):
    """The time is up. The drain stays: nothing new starts there, and trying again goes on waiting."""


async def ensure_drained(controller: Machine, host: str, request: DrainRequest, say: Say) -> JsonObject:
    """Return only when nothing runs there. An unknown state is waited for, and never taken for drained."""
    record = await nodes.read_node(controller, host)
    if record.present == "no":
        return {"node": "not there"}
    if record.present == "yes":
        record = await nodes.ensure_drain_asked(controller, host, why=request.why)
    record, jobs = await _wait_until_drained(controller, host, request.timeout_seconds, say)
    forced = record.drained != "yes" and request.force
    if forced:
        await say(f"time is up; ending {len(jobs)} jobs, as requested")
        await _give_up_jobs(controller, host, record)
        record, jobs = await _wait_until_drained(controller, host, SECONDS_AFTER_FORCE, say)
    # A node that was set down with its jobs given up does not answer, and has nothing left to run.
    given_up = forced and record.present == "yes" and "DOWN" in record.state and not jobs
    evidence: JsonObject = {"node": record.words, "jobs": jobs[:_SHOWN_JOBS], "forced": forced}
    if record.drained == "yes" or given_up:
        return evidence
    if record.drained == "unknown":
        detail = f"cannot tell whether jobs still run on {host}: it is {record.words}"
        raise StillBusyError("node_unknown", detail, evidence=evidence)
    detail = f"{len(jobs)} jobs still run on {host}: {'; '.join(jobs[:5])}. Retry to wait longer, or force"
    raise StillBusyError("jobs_still_running", detail, evidence=evidence)


async def _wait_until_drained(
    controller: Machine, host: str, seconds: float, say: Say
) -> tuple[nodes.NodeRecord, list[str]]:
    end = asyncio.get_running_loop().time() + seconds
    said = ""
    while True:
        record = await nodes.read_node(controller, host)
        jobs: list[str] = []
        words = f"{host} is {record.words}"
        if record.present == "yes" and record.drained != "yes":
            try:
                jobs = await nodes.read_jobs(controller, host)
                words += f"; {len(jobs)} jobs"
            except NotReadyError as error:
                words += f"; {error.detail}"
        if record.drained == "yes" or record.present == "no" or asyncio.get_running_loop().time() >= end:
            return record, jobs
        if words != said:
            said = words
            await say(words)
        await asyncio.sleep(POLL_SECONDS)


async def _give_up_jobs(controller: Machine, host: str, record: nodes.NodeRecord) -> None:
    if record.present != "yes":
        raise NotReadyError("node_unknown", f"cannot end the jobs of {host}: it is {record.words}")
    await nodes.ensure_jobs_cancelled_on(controller, host)
    if not record.responding:
        await nodes.ensure_set_down(controller, host, why="did not answer when it was drained by force")
