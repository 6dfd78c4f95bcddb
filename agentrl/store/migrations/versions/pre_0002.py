"""Imports between runs, grade attempts, group deadlines, long-item reservation, retention, checked moves.

The release before goes on working: columns are added with defaults or nullable, and every function that it calls stays.
"""

from __future__ import annotations

from alembic import op

from agentrl.store.schema_setup import create_tables, replace_code

revision = "pre_0002"
down_revision = "pre_0001"
branch_labels = None
depends_on = None

CALLED_BEFORE = (
    "add_checkpoint_v1", "add_trained_v1", "answer_segment_v1", "claim_v1", "commit_step_v1", "complete_v1", "conservation_v1",
    "ensure_partitions_v1", "f4", "find_run_v1", "head_v1", "i4", "more_can_arise_v1", "open_evaluation_v1", "open_v1",
    "opened_v1", "record_load_v1", "release_trainer_v1", "renew_leases_v1", "renew_trainer_v1", "renew_v1",
    "request_evaluation_v1", "settle_evaluations_v1", "settle_version_v1", "stage_version_v1", "start_trainer_v1",
    "work_v1", "write_segment_v1",
)  # fmt: skip

_COLUMNS = """
alter table agentrl.run add column group_deadline interval, add column long_tokens bigint check (long_tokens > 0),
  add column long_share double precision not null default 0 check (long_share >= 0 and long_share < 1),
  add column long_wait interval not null default interval '30 seconds',
  add column resume_partial boolean not null default false,
  add column origins text[] not null default '{simulated,recorded}',
  add column ahead bigint check (ahead >= 0),
  add check (ahead <= lag_bound),
  add column staleness_mode text not null default 'trajectory'
    check (staleness_mode = 'trajectory' or staleness_mode = 'segment_mask' and lag_bound is not null),
  add column group_extra bigint not null default 0 check (group_extra = 0 or group_extra > 0 and group_size > 1),
  add column oversample bigint check (oversample >= 0 and oversample <= lag_bound * batch_max);
alter table agentrl.grp add column extra bigint not null default 0 check (extra >= 0);
alter table agentrl.live add column parked_at timestamptz;
alter table agentrl.open_request add column fence bigint not null default nextval('agentrl.fence');
alter table agentrl.segment add column compacted json;
alter table agentrl.trajectory add column parent_seg bigint, add column root uuid, add column payload json;
alter table agentrl.policy_version add column bytes bigint, add column phases jsonb, add column removed_at timestamptz;
alter table agentrl.checkpoint add column removed_at timestamptz;
alter table agentrl.engine_version
  add column outcome text not null default 'loaded' check (outcome in ('loaded', 'failed')),
  add column attempt bigint not null default 1,
  add column transport text,
  add column bytes bigint,
  add column seconds double precision,
  add column phases jsonb,
  add column error text,
  add column loader text,
  add column fence bigint,
  add column pinned boolean not null default false;
alter table agentrl.segment add column unit_starts bytea check (octet_length(unit_starts) = n_act);
alter table agentrl.trained add column local_advantages bytea;
alter table agentrl.grade_job add column attempts bigint not null default 0, add column evidence bytea;
alter table agentrl.ready add column source bigint, add column environment text;
alter table agentrl.lease add column source bigint, add column environment text;
alter table agentrl.consumed add column source bigint,
  add column masked_tokens bigint not null default 0 check (masked_tokens >= 0), add column masked_versions bigint[];
alter table agentrl.dropped add column source bigint;
alter table agentrl.event add constraint event_is_a_legal_move check (coalesce(from_place, 'new') || ' -> ' || to_place in (
    'new -> live', 'new -> ready', 'live -> live', 'live -> grade_job', 'live -> graded', 'live -> evaluated',
    'live -> dropped', 'grade_job -> graded', 'grade_job -> evaluated', 'grade_job -> dropped', 'graded -> ready',
    'graded -> dropped', 'ready -> lease', 'ready -> dropped', 'lease -> ready', 'lease -> consumed', 'lease -> dropped',
    'consumed -> ready'))
"""


def upgrade() -> None:
    """Add columns and tables; replace the code, keeping what the release before calls."""
    op.execute(_COLUMNS)
    create_tables(op.get_bind(), ("import", "retired", "imported"))
    replace_code(op.get_bind(), keep=CALLED_BEFORE)
