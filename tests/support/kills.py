"""Controllers, or the API under them, killed at chosen boundaries of their steps.

    with killing(api_url, kill=restart_controller, strikes=wanted.__contains__) as boundaries:
        … start the controller with GPUAAS_API_URL=boundaries.proxy.url, let it work …
    assert set(boundaries.struck) == wanted

Which boundaries there are, a run that strikes nowhere tells (`boundaries.passed`); `sample` draws some of them. `kill`
may start the process again at once; a new controller process waits for the end of the dead one's lease, unless
`end_leases` ends it."""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg

from gpuaas_conformance.boundaries import Boundaries, Boundary
from gpuaas_conformance.proxy import FaultProxy


@contextmanager
def killing(
    api_url: str, *, kill: Callable[[Boundary], None], strikes: Callable[[Boundary], bool]
) -> Iterator[Boundaries]:
    """In a thread of its own: meanwhile a test may wait for whatever it likes."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    proxy = FaultProxy(api_url)
    proxy.weather = boundaries = Boundaries(proxy, kill, strikes)
    asyncio.run_coroutine_threadsafe(proxy.__aenter__(), loop).result(60)
    try:
        yield boundaries
    finally:
        asyncio.run_coroutine_threadsafe(proxy.__aexit__(None, None, None), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def sample(boundaries: list[Boundary], size: int, seed: int) -> set[Boundary]:
    """At most one of each kind of operation, so that one kill does not hide another."""
    draw = random.Random(seed)
    shuffled = draw.sample(boundaries, len(boundaries))
    by_kind = {boundary.kind: boundary for boundary in shuffled}
    return set(draw.sample(list(by_kind.values()), min(size, len(by_kind))))


def end_leases(database_url: str) -> None:
    """As if their time were over: where every boundary has its kill, most of the time would go by waiting for that.

    A successor comes sooner than it ever could, so it also meets what its predecessor has left running."""
    with psycopg.connect(database_url, autocommit=True) as database:
        database.execute("UPDATE operations SET lease_expires_at = now() WHERE lease_expires_at > now()")
        database.execute("UPDATE reconcile_leases SET expires_at = now() WHERE expires_at > now()")
