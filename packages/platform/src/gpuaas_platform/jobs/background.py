"""Loops of every API process. Each is safe to run in many processes at once."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from gpuaas_contract.history import EVENT_DAYS, REQUEST_DAYS
from gpuaas_contract.problems import IDEMPOTENCY_HOURS
from gpuaas_platform.access.service import grants, instance_people, rotations
from gpuaas_platform.accounts.storage import guesses as guess_store
from gpuaas_platform.accounts.storage import sessions as session_store
from gpuaas_platform.allocations.service.placement import place_waiting
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.idempotency import sweep_keys
from gpuaas_platform.core.wakeups import OUTBOX, PEOPLE, TOKEN_KEYS
from gpuaas_platform.feed.storage import changes as change_store
from gpuaas_platform.feed.storage import history as history_store
from gpuaas_platform.identity.storage import oauth as oauth_store
from gpuaas_platform.nodes.service import nodes
from gpuaas_platform.operations.service import work
from gpuaas_platform.platform import Platform

log = structlog.get_logger()
SWEEP_SECONDS = 2
LEASE_SWEEP_SECONDS = 0.5
PLACE_SECONDS = 2
SEAL_SECONDS = 1
FEED_SWEEP_SECONDS = 5
RECHECK_SECONDS = 1
TOKEN_KEY_SECONDS = 60
VAULT_TOKEN_SECONDS = 3_600
REQUEST_LOG_SECONDS = 0.5
HISTORY_SWEEP_SECONDS = 3_600
PEOPLE_SECONDS = 5
PEOPLE_PAUSE = 0.05


async def for_ever(name: str, once: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await once()
        except Exception:
            log.exception("loop_failed", loop=name)
            await asyncio.sleep(1)


async def sequence_changes(platform: Platform) -> None:
    """For as long as its connection lives."""
    async with platform.database.dedicated() as link:
        while True:
            woken = platform.wakeups.event(OUTBOX)
            count = await change_store.sequence(link)
            # What is committed from here on sets the event that was taken before: no need to look once more.
            if count < change_store.SEQUENCER_BATCH:
                await platform.wakeups.wait(woken, RECHECK_SECONDS)


async def follow_feed(platform: Platform) -> None:
    await platform.feed.tail.follow()


async def sweep_feed(platform: Platform) -> None:
    if not await platform.feed.sweep():
        await asyncio.sleep(FEED_SWEEP_SECONDS)


async def seal_audit(platform: Platform) -> None:
    await platform.audit.seal()
    await platform.audit.write_checkpoints()
    await asyncio.sleep(SEAL_SECONDS)


async def sign_receipts(platform: Platform) -> None:
    """Sign what ended since, and what a crash left without a signature."""
    await platform.receipts.sign_pending()
    await asyncio.sleep(SEAL_SECONDS)


async def keep_receipt_key(platform: Platform) -> None:
    await platform.receipts.rotate_if_due()
    await asyncio.sleep(TOKEN_KEY_SECONDS)


async def sweep(platform: Platform) -> None:
    """Each for itself: where one fails, the others are done all the same."""
    sweeps: dict[str, Callable[[Transaction], Awaitable[object]]] = {
        "silent_nodes": lambda tx: nodes.mark_silent_nodes(tx, platform.offline_after_seconds),
        "overdue_operations": work.fail_overdue,
        "expired_leases": work.notice_expired,
        "grants": grants.sweep,
        "host_certificates": lambda tx: rotations.renew_due(tx, platform.host_certificate_seconds),
        "idempotency_keys": lambda tx: sweep_keys(tx, IDEMPOTENCY_HOURS),
        "sessions": session_store.sweep,
        "oauth": oauth_store.sweep,
        "failed_attempts": guess_store.sweep,
    }
    for name, once in sweeps.items():
        try:
            async with platform.database.system_transaction() as tx:
                await once(tx)
        except Exception:
            log.exception("sweep_failed", sweep=name)
    await asyncio.sleep(SWEEP_SECONDS)


async def close_leases(platform: Platform) -> None:
    """Have machines refuse the holders of leases that have run out: nobody else says so when a controller is gone."""
    await platform.doors.close_expired()
    await asyncio.sleep(LEASE_SWEEP_SECONDS)


async def keep_people(platform: Platform) -> None:
    """Make the people of each instance, and their entries on its machines, those that the tables of rights name."""
    woken = platform.wakeups.event(PEOPLE)
    async with platform.database.system_transaction() as tx:
        stale = await instance_people.list_stale(tx)
    for instance_id in stale:
        async with platform.database.system_transaction() as tx:
            await instance_people.sync(tx, instance_id)
    # Changes come in bursts, and one look serves all of them.
    await asyncio.sleep(PEOPLE_PAUSE)
    await platform.wakeups.wait(woken, PEOPLE_SECONDS)


async def place(platform: Platform) -> None:
    """Look again at requests that wait for capacity, whatever made room for them."""
    async with platform.database.system_transaction() as tx:
        await place_waiting(tx, platform.plan)
    await asyncio.sleep(PLACE_SECONDS)


async def write_requests(platform: Platform) -> None:
    if not await platform.request_log.write():
        await asyncio.sleep(REQUEST_LOG_SECONDS)


async def write_failed_logins(platform: Platform) -> None:
    await platform.failed_logins.write()
    await asyncio.sleep(REQUEST_LOG_SECONDS)


async def sweep_history(platform: Platform) -> None:
    async with platform.database.system_transaction() as tx:
        await history_store.sweep(tx, EVENT_DAYS, REQUEST_DAYS)
    await asyncio.sleep(HISTORY_SWEEP_SECONDS)


async def sweep_secrets(platform: Platform) -> None:
    """In a loop of its own: nothing else waits while the secrets server is away."""
    await platform.secrets.sweep()
    await platform.authorities.sweep()
    await asyncio.sleep(SWEEP_SECONDS)


async def renew_vault_token(platform: Platform) -> None:
    await platform.openbao.renew_token()
    await asyncio.sleep(VAULT_TOKEN_SECONDS)


async def keep_token_key(platform: Platform) -> None:
    """Rotate the key when it is due, and know the versions that other processes made."""
    woken = platform.wakeups.event(TOKEN_KEYS)
    if not await platform.tokens.keys.rotate_if_due():
        await platform.tokens.keys.reload()
    await platform.wakeups.wait(woken, TOKEN_KEY_SECONDS)
