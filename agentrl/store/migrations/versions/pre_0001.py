"""The first store. A database that has it was created whole; there is nothing before it to migrate from."""

from __future__ import annotations

revision = "pre_0001"
down_revision = None
branch_labels = ("pre",)
depends_on = None


def upgrade() -> None:
    """Nothing: see the module."""
