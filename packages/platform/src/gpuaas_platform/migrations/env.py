"""Alembic's entry point: one connection, all pending migrations in one transaction under one lock."""

from alembic import context
from sqlalchemy import create_engine, text

MIGRATION_LOCK = 7_470_001

engine = create_engine(context.config.get_main_option("sqlalchemy.url") or "")
with engine.connect() as connection:
    context.configure(connection=connection)
    with context.begin_transaction():
        # Two API processes that start at once must not both migrate.
        connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
        context.run_migrations()
