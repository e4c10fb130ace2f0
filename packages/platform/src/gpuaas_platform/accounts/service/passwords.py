"""Hashing passwords: a few at a time, in turns of the addresses that ask, and never inside of a transaction."""

import asyncio
import base64
import os
import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error

from gpuaas_platform.core.origins import current_origin
from gpuaas_platform.core.turns import Rank, Turns

LANES = 4
# A hash takes 64 MiB and four threads for a tenth of a second: as many at a time as have cores.
AT_ONCE = max(1, (os.cpu_count() or 1) // LANES)
NICENESS = 5
"""Of the threads that hash: whoever only asks for something does not wait for the cores behind passwords."""
MOST_WAITING, MOST_WAITING_EACH, MOST_WAIT_SECONDS = 64, 8, 5
_hasher = PasswordHasher(parallelism=LANES)
_queue = Turns(AT_ONCE, MOST_WAITING, MOST_WAITING_EACH, MOST_WAIT_SECONDS)
# Threads of its own: whatever else runs in threads does not wait behind passwords, nor they behind it.
_threads = ThreadPoolExecutor(
    AT_ONCE,
    thread_name_prefix="passwords",
    # The threads that argon2 itself starts have the same.
    initializer=lambda: os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _niceness()),
)


def _niceness() -> int:
    return min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)


def use_memory(kib: int) -> None:
    """Hash with this much memory from now on. Hashes that exist stay good: each says how it was made."""
    global _hasher
    _hasher = PasswordHasher(memory_cost=kib, parallelism=LANES)


def nobodys_hash() -> str:
    """A hash that no password has, and that takes as long to compare as any: verified against when the e-mail is
    unknown, so that the time of the answer tells nothing."""
    lengths = (_hasher.salt_len, _hasher.hash_len)
    salt, digest = (base64.b64encode(secrets.token_bytes(length)).decode().rstrip("=") for length in lengths)
    costs = f"m={_hasher.memory_cost},t={_hasher.time_cost},p={_hasher.parallelism}"
    return f"$argon2id$v=19${costs}${salt}${digest}"


def turn(rank: Rank = Rank.CLEAN) -> AbstractAsyncContextManager[None]:
    """Wait until it is the turn of the present request's address; refused with 429 where too many wait."""
    return _queue.turn(current_origin.get().group, rank)


async def hash_password(password: str) -> str:
    # Who sets a password is logged in.
    async with turn(Rank.KNOWN):
        return await asyncio.get_running_loop().run_in_executor(_threads, _hasher.hash, password)


async def is_password(password_hash: str, password: str) -> bool:
    """Call it within a `turn`."""
    try:
        return await asyncio.get_running_loop().run_in_executor(_threads, _hasher.verify, password_hash, password)
    except Argon2Error:
        return False
