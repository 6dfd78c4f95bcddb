"""An order of the queue by index, repeated turns known by their columns, parked episodes, origins, vacuum, a role for workers.

The releases before go on working: what their clients call stays, and so does the view that only their saved query reads.
A database that comes from the first release got the columns with `pre_0002`, whose code is that of this release.
"""

from __future__ import annotations

from alembic import op

from agentrl.store.migrations.versions.pre_0002 import CALLED_BEFORE
from agentrl.store.schema_setup import replace_code

revision = "pre_0003"
down_revision = "pre_0002"
branch_labels = None
depends_on = None


_MOVES = """
alter table agentrl.event add constraint event_is_a_legal_move check (coalesce(from_place, 'new') || ' -> ' || to_place in (
    'new -> live', 'new -> ready', 'live -> live', 'live -> grade_job', 'live -> graded', 'live -> evaluated',
    'live -> dropped', 'grade_job -> graded', 'grade_job -> evaluated', 'grade_job -> dropped', 'graded -> ready',
    'graded -> dropped', 'ready -> lease', 'ready -> dropped', 'lease -> ready', 'lease -> consumed', 'lease -> dropped',
    'consumed -> ready'))
"""

_LOADS = """
alter table agentrl.engine_version
  add column if not exists outcome text not null default 'loaded' check (outcome in ('loaded', 'failed')),
  add column if not exists attempt bigint not null default 1,
  add column if not exists transport text,
  add column if not exists bytes bigint,
  add column if not exists seconds double precision,
  add column if not exists phases jsonb,
  add column if not exists error text,
  add column if not exists loader text,
  add column if not exists fence bigint,
  add column if not exists pinned boolean not null default false
"""


_AHEAD = """
do $$ begin
  if not exists (select 1 from information_schema.columns
                 where table_schema = 'agentrl' and table_name = 'run' and column_name = 'ahead') then
    alter table agentrl.run add column ahead bigint check (ahead >= 0), add check (ahead <= lag_bound);
  end if;
end $$;
"""


_TERMINATIONS = """
alter table agentrl.trajectory drop constraint trajectory_termination_check, add constraint trajectory_termination_check
  check (termination in ('terminated', 'truncated_turn_tokens', 'truncated_tokens', 'truncated_context', 'truncated_turns',
                         'truncated_time', 'truncated_turn_time', 'aborted', 'failed'))
"""


def upgrade() -> None:
    """Add an index, no longer ask for a hash of each turn; replace the code, keeping what the releases before call."""
    op.execute("alter table agentrl.segment alter body_hash drop not null")
    op.execute(
        "alter table agentrl.run add column if not exists resume_partial boolean not null default false,"
        " add column if not exists origins text[] not null default '{simulated,recorded}'"
    )
    op.execute("alter table agentrl.segment add column if not exists compacted json")
    op.execute(
        "alter table agentrl.trajectory add column if not exists parent_seg bigint, add column if not exists root uuid,"
        " add column if not exists payload json"
    )
    op.execute("create index if not exists trajectory_root_idx on agentrl.trajectory (root) where root is not null")
    op.execute(_AHEAD)
    op.execute("alter table agentrl.live add column if not exists parked_at timestamptz")
    op.execute(
        "alter table agentrl.policy_version add column if not exists bytes bigint, add column if not exists phases jsonb,"
        " add column if not exists removed_at timestamptz"
    )
    op.execute("alter table agentrl.checkpoint add column if not exists removed_at timestamptz")
    op.execute(_LOADS)
    op.execute(
        "alter table agentrl.segment add column if not exists unit_starts bytea check (octet_length(unit_starts) = n_act)"
    )
    op.execute("alter table agentrl.trained add column if not exists local_advantages bytea")
    op.execute(
        "alter table agentrl.run add column if not exists staleness_mode text not null default 'trajectory'"
        " check (staleness_mode = 'trajectory' or staleness_mode = 'segment_mask' and lag_bound is not null)"
    )
    op.execute(
        "alter table agentrl.run add column if not exists group_extra bigint not null default 0"
        " check (group_extra = 0 or group_extra > 0 and group_size > 1),"
        " add column if not exists oversample bigint check (oversample >= 0 and oversample <= lag_bound * batch_max)"
    )
    op.execute("alter table agentrl.grp add column if not exists extra bigint not null default 0 check (extra >= 0)")
    op.execute(
        "alter table agentrl.consumed add column if not exists masked_versions bigint[],"
        " add column if not exists masked_tokens bigint not null default 0 check (masked_tokens >= 0)"
    )
    op.execute(
        "alter table agentrl.open_request add column if not exists fence bigint not null default nextval('agentrl.fence')"
    )
    op.execute("alter table agentrl.grade_job add column if not exists evidence bytea")
    op.execute(_TERMINATIONS)
    op.execute("alter table agentrl.event drop constraint event_is_a_legal_move")
    op.execute(_MOVES)
    op.execute("create index on agentrl.ready (run, oldest_update, at, item)")
    replace_code(op.get_bind(), keep=(*CALLED_BEFORE, "claim_v2", "claim_grades_v1"))
    op.execute(
        "create view agentrl.conservation as select run, run_name as name, created, live, grade_job, graded, ready, lease,"
        " consumed, dropped, evaluated, eval_open, holds from agentrl.v_conservation"
    )
