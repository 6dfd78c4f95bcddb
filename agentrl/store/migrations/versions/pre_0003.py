"""An order of the queue by index, repeated turns known by their columns, vacuum, a role for workers.

The releases before go on working: what their clients call stays, and so does the view that only their saved query reads.
"""

from __future__ import annotations

from alembic import op

from agentrl.store.migrations.versions.pre_0002 import CALLED_BEFORE
from agentrl.store.schema_setup import replace_code

revision = "pre_0003"
down_revision = "pre_0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add an index, no longer ask for a hash of each turn; replace the code, keeping what the releases before call."""
    op.execute("alter table agentrl.segment alter body_hash drop not null")
    op.execute("create index on agentrl.ready (run, oldest_update, at, item)")
    replace_code(op.get_bind(), keep=(*CALLED_BEFORE, "claim_v2"))
    op.execute(
        "create view agentrl.conservation as select run, run_name as name, created, live, grade_job, graded, ready, lease,"
        " consumed, dropped, evaluated, eval_open, holds from agentrl.v_conservation"
    )
