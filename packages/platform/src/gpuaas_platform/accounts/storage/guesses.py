"""Failed attempts to log in, counted for all API processes."""

from gpuaas_platform.accounts.rules.guesses import FORGET_SECONDS, KNOWN_DAYS, Failures, Keys
from gpuaas_platform.core.database import Transaction


async def read(tx: Transaction, keys: Keys) -> dict[str, Failures]:
    rows = await tx.all(
        """SELECT key, failures, extract(epoch FROM now() - last_at)::float AS seconds_ago FROM failed_attempts
           WHERE key = ANY(%(keys)s)""",
        keys=[*keys.counted, keys.known],
    )
    return {row["key"]: Failures(row["failures"], row["seconds_ago"]) for row in rows}


async def count(tx: Transaction, keys: Keys) -> dict[str, Failures]:
    """Count one failure. The keys are sorted, so that two who count the same ones never wait for each other."""
    rows = await tx.all(
        """INSERT INTO failed_attempts AS f (key, failures) SELECT k, 1 FROM unnest(%(keys)s::text[]) k
           ON CONFLICT (key) DO UPDATE SET last_at = now(), failures =
             CASE WHEN f.last_at < now() - make_interval(secs => %(forget)s) THEN 1
                  ELSE least(f.failures + 1, 1000000) END
           RETURNING key, failures""",
        keys=keys.counted,
        forget=FORGET_SECONDS,
    )
    return {row["key"]: Failures(row["failures"], 0) for row in rows}


async def forgive(tx: Transaction, keys: Keys, *, had_failed: bool) -> None:
    """Remember once a day that an account logs in from here; forget what failed here before."""
    if had_failed:
        await tx.run("DELETE FROM failed_attempts WHERE key = %(key)s", key=keys.of_pair)
    await tx.run(
        """INSERT INTO failed_attempts AS f (key, failures) VALUES (%(key)s, 0)
           ON CONFLICT (key) DO UPDATE SET last_at = now() WHERE f.last_at < now() - interval '1 day'""",
        key=keys.known,
    )


async def sweep(tx: Transaction) -> int:
    return await tx.run(
        """DELETE FROM failed_attempts WHERE last_at < now() - make_interval(secs => %(forget)s)
             AND (failures > 0 OR last_at < now() - make_interval(days => %(days)s))""",
        forget=FORGET_SECONDS,
        days=KNOWN_DAYS,
    )
