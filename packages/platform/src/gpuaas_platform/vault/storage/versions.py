"""One row for each value in OpenBao, from before it is written until after it is destroyed.

writing → valid → ending → ended. What was never finished goes from writing to ending."""

from typing import Any

from gpuaas_platform.core.database import Transaction
from gpuaas_platform.vault.records import SecretVersionRecord


async def intend(tx: Transaction, owner_id: str, version: int, project_id: str, **facts: Any) -> None:
    """`facts` are what may be known of the value: its public key, for example."""
    await tx.run(
        """INSERT INTO secret_versions (owner_id, version, project_id, request_key, origin, key_type, bits,
                                        public_key, fingerprint)
           VALUES (%(owner)s, %(version)s, %(project)s, %(request)s, %(origin)s, %(key_type)s, %(bits)s,
                   %(public_key)s, %(fingerprint)s)""",
        owner=owner_id,
        version=version,
        project=project_id,
        request=tx.request_key,
        **{name: facts.get(name) for name in ("origin", "key_type", "bits", "public_key", "fingerprint")},
    )


async def is_in_flight(tx: Transaction) -> bool:
    """Whether the first request with the key of this one is still writing."""
    row = await tx.one(
        "SELECT 1 FROM secret_versions WHERE request_key = %(key)s AND state = 'writing' LIMIT 1", key=tx.request_key
    )
    return row is not None


async def settle(tx: Transaction, owner_id: str, version: int) -> bool:
    """Take it into use; False where it was given up meanwhile."""
    done = await tx.run(
        """UPDATE secret_versions SET state = 'valid', valid_at = now(), request_key = NULL
           WHERE owner_id = %(owner)s AND version = %(version)s AND state = 'writing'""",
        owner=owner_id,
        version=version,
    )
    return done == 1


async def abandon(tx: Transaction, owner_id: str, version: int) -> None:
    """Only what is not in use: where a commit's answer was lost, it may be."""
    await tx.run(
        """UPDATE secret_versions SET state = 'ending', ended_at = now()
           WHERE owner_id = %(owner)s AND version = %(version)s AND state = 'writing'""",
        owner=owner_id,
        version=version,
    )


async def end(tx: Transaction, owner_id: str, version: int | None = None) -> None:
    """End one version, or all of them."""
    await tx.run(
        """UPDATE secret_versions SET state = 'ending', ended_at = now()
           WHERE owner_id = %(owner)s AND state IN ('writing', 'valid')
             AND (%(version)s::int IS NULL OR version = %(version)s)""",
        owner=owner_id,
        version=version,
    )


async def list_of(tx: Transaction, owner_ids: list[str]) -> list[SecretVersionRecord]:
    """Also those that were given up before they were valid: their numbers are not used again."""
    return await tx.fetch_all(
        SecretVersionRecord,
        "SELECT * FROM secret_versions WHERE owner_id = ANY(%(ids)s) ORDER BY owner_id, version",
        ids=owner_ids,
    )


async def list_unsettled(tx: Transaction, patience_seconds: int, limit: int) -> list[SecretVersionRecord]:
    """List versions that are to be destroyed; a write that nobody finished is one of them from now on."""
    await tx.run(
        """UPDATE secret_versions SET state = 'ending', ended_at = now()
           WHERE state = 'writing' AND created_at < now() - make_interval(secs => %(patience)s)""",
        patience=patience_seconds,
    )
    return await tx.fetch_all(
        SecretVersionRecord,
        "SELECT * FROM secret_versions WHERE state = 'ending' ORDER BY created_at LIMIT %(limit)s",
        limit=limit,
    )


async def set_ended(tx: Transaction, owner_id: str, version: int) -> bool:
    """False where another process was faster."""
    done = await tx.run(
        """UPDATE secret_versions SET state = 'ended', request_key = NULL
           WHERE owner_id = %(owner)s AND version = %(version)s AND state = 'ending'""",
        owner=owner_id,
        version=version,
    )
    return done == 1
