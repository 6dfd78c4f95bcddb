"""Run by Alembic: migrates the connection that `agentrl.store.schema_migration` hands over, inside its transaction."""

from __future__ import annotations

from alembic import context

from agentrl.store.schema_migration import VERSION_TABLE

context.configure(
    connection=context.config.attributes["connection"],
    version_table=VERSION_TABLE,
    version_table_schema="agentrl",
    target_metadata=None,
)
context.run_migrations()
