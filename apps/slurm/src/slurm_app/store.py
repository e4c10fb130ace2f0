"""The app's own database: SQLite in a file, or PostgreSQL by URL.

The platform knows what is wanted, the machines know what is there. This database has what neither knows: the Slurm
account of each project, the name by which slurmctld knows a member, and a copy of each machine's baseline, should the
machine lose its own.
"""

import asyncio
import hashlib
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Column, DateTime, LargeBinary, MetaData, String, Table, create_engine, event, insert, select
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import IntegrityError

from gpuaas_sdk import ControllerMisconfiguredError

URL_SETTING = "SLURM_APP_DATABASE_URL"
STATE_SETTING = "APP_STATE_DIR"
T = TypeVar("T")

_metadata = MetaData()
_accounts = Table(
    "slurm_accounts",
    _metadata,
    Column("project_id", String(64), primary_key=True),
    Column("account", String(64), nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
)
_nodes = Table(
    "slurm_nodes",
    _metadata,
    Column("member_id", String(64), primary_key=True),
    Column("instance_id", String(64), nullable=False, index=True),
    Column("allocation_id", String(64), nullable=False),
    Column("name", String(64), nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
)
# Machines made from one image were the same before: each content is kept once.
_contents = Table(
    "slurm_baseline_contents",
    _metadata,
    Column("digest", String(64), primary_key=True),
    Column("content", LargeBinary, nullable=False),
)
_baselines = Table(
    "slurm_baselines",
    _metadata,
    Column("allocation_id", String(64), primary_key=True),
    Column("instance_id", String(64), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("created_at", DateTime(timezone=True), nullable=False),
)


def default_url() -> str:
    if url := os.environ.get(URL_SETTING):
        return url
    directory = os.environ.get(STATE_SETTING) or os.environ.get("HOME")
    if not directory:
        raise ControllerMisconfiguredError(f"{URL_SETTING} or {STATE_SETTING} must say where the app's database is")
    return f"sqlite:///{Path(directory) / 'slurm-app.db'}"


def _now() -> datetime:
    return datetime.now(UTC)


class Store:
    """Every call is one short transaction in a thread of its own. What is remembered first stays."""

    def __init__(self, url: str | None = None) -> None:
        chosen = url or default_url()
        if chosen.startswith("postgresql://"):
            chosen = chosen.replace("postgresql://", "postgresql+psycopg://", 1)
        self._engine = _open(chosen)
        _metadata.create_all(self._engine)

    async def _run(self, work: Callable[[Connection], T]) -> T:
        def transaction() -> T:
            with self._engine.begin() as connection:
                return work(connection)

        return await asyncio.to_thread(transaction)

    async def _remember(self, table: Table, **values: Any) -> None:
        try:
            await self._run(lambda connection: connection.execute(insert(table).values(**values)))
        except IntegrityError:
            # Somebody was first, perhaps another process of this controller.
            return

    async def account_of(self, project_id: str, proposed: str) -> str:
        """The account of a project: as it was named first, also when the project is renamed."""
        await self._remember(_accounts, project_id=project_id, account=proposed, created_at=_now())
        query = select(_accounts.c.account).where(_accounts.c.project_id == project_id)
        return str(await self._run(lambda connection: connection.execute(query).scalar_one()))

    async def remember_node(self, member_id: str, instance_id: str, allocation_id: str, name: str) -> None:
        await self._remember(
            _nodes,
            member_id=member_id,
            instance_id=instance_id,
            allocation_id=allocation_id,
            name=name,
            created_at=_now(),
        )

    async def node_of(self, member_id: str) -> str | None:
        query = select(_nodes.c.name).where(_nodes.c.member_id == member_id)
        return await self._run(lambda connection: connection.execute(query).scalar_one_or_none())

    async def remember_baseline(self, allocation_id: str, instance_id: str, content: bytes) -> None:
        digest = hashlib.sha256(content).hexdigest()
        await self._remember(_contents, digest=digest, content=content)
        await self._remember(
            _baselines, allocation_id=allocation_id, instance_id=instance_id, digest=digest, created_at=_now()
        )

    async def baseline_of(self, allocation_id: str, instance_id: str) -> bytes | None:
        query = (
            select(_contents.c.content)
            .join(_baselines, _baselines.c.digest == _contents.c.digest)
            .where(_baselines.c.allocation_id == allocation_id, _baselines.c.instance_id == instance_id)
        )
        return await self._run(lambda connection: connection.execute(query).scalar_one_or_none())

    async def forget(self, instance_id: str, allocation_id: str, member_ids: list[str]) -> None:
        """Delete everything about the members of a machine, after a clean receipt."""

        def work(connection: Connection) -> None:
            of_machine = _baselines.c.allocation_id == allocation_id
            connection.execute(_baselines.delete().where(of_machine, _baselines.c.instance_id == instance_id))
            connection.execute(_nodes.delete().where(_nodes.c.member_id.in_(member_ids)))
            kept = select(_baselines.c.digest)
            connection.execute(_contents.delete().where(_contents.c.digest.not_in(kept)))

        await self._run(work)

    def close(self) -> None:
        self._engine.dispose()


def _open(url: str) -> Engine:
    engine = create_engine(url)
    if url.startswith("sqlite"):

        @event.listens_for(engine, "connect")
        def _set(connection: Any, _: Any) -> None:
            # Two processes on one machine: the second waits for the first.
            connection.execute("PRAGMA busy_timeout = 10000")
            connection.execute("PRAGMA journal_mode = WAL")

    return engine
