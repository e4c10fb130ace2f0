"""People's own SSH public keys."""

from gpuaas_platform.access.rules.ssh_keys import PublicKey
from gpuaas_platform.accounts.records import SshKeyRecord
from gpuaas_platform.core.database import Transaction


async def insert(tx: Transaction, id: str, user_id: str, name: str, key: PublicKey) -> SshKeyRecord | None:
    return await tx.find(
        SshKeyRecord,
        """INSERT INTO ssh_keys (id, user_id, name, key_type, bits, public_key, fingerprint)
           VALUES (%(id)s, %(user)s, %(name)s, %(type)s, %(bits)s, %(key)s, %(fingerprint)s)
           ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        user=user_id,
        name=name,
        type=key.key_type,
        bits=key.bits,
        key=key.public_key,
        fingerprint=key.fingerprint,
    )


async def lock(tx: Transaction, id: str) -> SshKeyRecord | None:
    return await tx.find(SshKeyRecord, "SELECT * FROM ssh_keys WHERE id = %(id)s FOR UPDATE", id=id)


async def count(tx: Transaction, user_id: str) -> int:
    row = await tx.one("SELECT count(*) AS number FROM ssh_keys WHERE user_id = %(user)s", user=user_id)
    assert row is not None
    return int(row["number"])


async def list_of_user(tx: Transaction, user_id: str, after: str = "", limit: int = 1_000) -> list[SshKeyRecord]:
    return await tx.fetch_all(
        SshKeyRecord,
        "SELECT * FROM ssh_keys WHERE user_id = %(user)s AND id > %(after)s ORDER BY id LIMIT %(limit)s",
        user=user_id,
        after=after,
        limit=limit,
    )


async def list_of_users(tx: Transaction, user_ids: list[str]) -> list[SshKeyRecord]:
    return await tx.fetch_all(
        SshKeyRecord, "SELECT * FROM ssh_keys WHERE user_id = ANY(%(users)s) ORDER BY id", users=user_ids
    )


async def delete(tx: Transaction, id: str) -> None:
    await tx.run("DELETE FROM ssh_keys WHERE id = %(id)s", id=id)
