"""Removes what only the release before called."""

from __future__ import annotations

from alembic import op

from agentrl.store.schema_setup import replace_code

revision = "post_0003"
down_revision = "post_0002"
branch_labels = None
depends_on = ("pre_0003",)


def upgrade() -> None:
    """Drop functions and views that no file of this release defines, and the hash that only they wrote and read."""
    replace_code(op.get_bind(), keep=())
    op.execute("alter table agentrl.segment drop column body_hash")
