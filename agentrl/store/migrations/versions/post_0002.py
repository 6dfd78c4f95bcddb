"""Removes what only the first release called."""

from __future__ import annotations

from alembic import op

from agentrl.store.schema_setup import replace_code

revision = "post_0002"
down_revision = None
branch_labels = ("post",)
depends_on = ("pre_0002",)


def upgrade() -> None:
    """Drop functions that no file of this release defines, and the table that numbered schemas before."""
    replace_code(op.get_bind(), keep=())
    op.execute("drop table if exists agentrl.schema_version")
