-- Schema of the first store (version 1), as `ensure_schema` created it; migrations are tested from here.
create schema agentrl;
-- 10_runs.sql
-- Runs, their tasks, weights and checkpoints. Integers are bigint throughout: one width on the wire and in every comparison.
-- json is for what programs read back verbatim (key order, 1e16), jsonb for what people query.

-- The version of this schema; the library refuses any other.
create table agentrl.schema_version (
  version bigint primary key,                               -- Number that the library compares with its own.
  created_at timestamptz not null default now()             -- When this schema was created.
);

-- Fencing numbers: whoever holds the greatest one for a row may write it.
create sequence agentrl.fence as bigint;

-- One training run; its row is the lock of the protocol (shared by moves, exclusive for a trainer start).
create table agentrl.run (
  id bigint generated always as identity primary key,       -- Key of the run in every other table.
  name text not null unique,                                -- Name the user chose.
  environment text not null,                                -- Environment that the tasks belong to.
  config json not null,                                     -- Resolved configuration as the run was started.
  config_hash text not null,                                -- Hash of the resolved configuration.
  seed bigint not null,                                     -- Seed from which the episode seeds derive.
  lag_bound bigint check (lag_bound >= 0),                  -- Largest lag in policy updates of a trained token; NULL means unbounded.
  batch_min bigint not null check (batch_min > 0),          -- Fewest trajectories in a step.
  batch_max bigint not null check (batch_max >= batch_min), -- Most trajectories in a step; the batch of the admission rule.
  group_size bigint not null check (group_size > 0),        -- Trajectories per group; 1 means no groups.
  target_steps bigint check (target_steps > 0),             -- Step after which nothing opens any more; NULL means no end.
  max_running bigint not null check (max_running > 0),      -- Most live training episodes when the lag is unbounded.
  max_attempts bigint not null check (max_attempts > 0),    -- Charged attempts of an episode before its seat is given up.
  max_lease_attempts bigint not null check (max_lease_attempts > 0), -- Claims that may end with a dead trainer before the item is dropped.
  lease interval not null,                                  -- Lease of a live episode; each write renews it.
  max_age interval,                                         -- Age at which an unclaimed trajectory is dropped; NULL means never.
  status text not null default 'running' check (status in ('running', 'finished', 'interrupted', 'failed')), -- Whether work may open.
  branch bigint not null default 0,                         -- Live branch: one per trainer start.
  trainer_fence bigint,                                     -- Fence of the newest trainer.
  trainer_owner text,                                       -- Process that holds the fence; NULL when released.
  trainer_lease interval,                                   -- Length of the trainer's lease.
  trainer_lease_until timestamptz,                          -- When the trainer's lease lapses.
  created_at timestamptz not null default now(),            -- When the run was created.
  check (batch_min % group_size = 0 and batch_max % group_size = 0),
  check (lag_bound is distinct from 0 or batch_min = batch_max)
);

-- When a run was last reaped; apart from the run row so that reaping never waits for its lock.
create table agentrl.reap (
  run bigint primary key references agentrl.run,            -- The run.
  at timestamptz not null default '-infinity'               -- Last time that expired rows were collected.
);

-- The tasks of a run, in the order in which they are served.
create table agentrl.task (
  run bigint not null references agentrl.run,               -- The run.
  split text not null,                                      -- Split of the data set.
  idx bigint not null,                                      -- Position in the split, from 0.
  task_id text not null,                                    -- The environment's own id of the task.
  payload json not null,                                    -- What the environment needs to set the task up.
  primary key (run, split, idx)
);

-- How far a run has got in each split; never rewound, so a resume neither skips nor repeats a task.
create table agentrl.task_cursor (
  run bigint not null references agentrl.run,               -- The run.
  split text not null,                                      -- Split of the data set.
  next bigint not null default 0,                           -- Cursor of the next new task; modulo n is its idx, divided by n its epoch.
  n bigint not null,                                        -- Number of tasks in the split.
  primary key (run, split)
);

-- Names of weights: unique, growing, never reused.
create table agentrl.policy_version (
  run bigint not null references agentrl.run,               -- The run.
  version bigint not null check (version >= 0),             -- Name of the weights.
  parent bigint,                                            -- Version that these weights continue; NULL for the root.
  updates bigint not null check (updates >= 0),             -- Policy updates on the lineage of these weights.
  effective_update bigint not null,                         -- 2 * updates(common ancestor with the live head) - updates: lag counts from here.
  uri text not null,                                        -- Where the weights lie.
  checksum text not null,                                   -- Checksum of the weights.
  status text not null check (status in ('staged', 'published', 'failed')), -- Tokens may carry it from staged on; failed burns the name.
  branch bigint not null,                                   -- Branch whose trainer staged it.
  fence bigint not null,                                    -- Fence of that trainer.
  staged_at timestamptz not null default now(),             -- When the name was given.
  published_at timestamptz,                                 -- When the weights were verified.
  failed_at timestamptz,                                    -- When the name was burnt.
  primary key (run, version),
  foreign key (run, parent) references agentrl.policy_version
);

-- Which engine loaded which version, and when.
create table agentrl.engine_version (
  id bigint generated always as identity primary key,       -- Order of the loads.
  run bigint not null references agentrl.run,               -- The run.
  engine text not null,                                     -- Name of the engine process.
  version bigint not null,                                  -- Version that it loaded.
  loaded_at timestamptz not null default now(),             -- When it was loaded.
  foreign key (run, version) references agentrl.policy_version
);
create index on agentrl.engine_version (run, engine, id);

-- Checkpoints whose file was written and checksummed before the row.
create table agentrl.checkpoint (
  id bigint generated always as identity primary key,       -- Key of the checkpoint.
  run bigint not null references agentrl.run,               -- The run.
  branch bigint not null,                                   -- Branch that wrote it.
  step bigint not null,                                     -- Last step it contains.
  updates bigint not null,                                  -- Policy updates it contains.
  version bigint not null,                                  -- Newest version on its lineage.
  uri text not null,                                        -- Where the file lies; holds branch and fence, never overwritten.
  checksum text not null,                                   -- Checksum of the file.
  fence bigint not null,                                    -- Fence of the trainer that wrote it.
  abandoned_by bigint,                                      -- Branch whose start left this checkpoint behind; NULL on the live history.
  at timestamptz not null default now(),                    -- When it was committed.
  unique (run, uri),
  foreign key (run, version) references agentrl.policy_version
);

-- Requests to score a published version on the first n tasks of a split.
create table agentrl.evaluation (
  id bigint generated always as identity primary key,       -- Key of the request.
  run bigint not null references agentrl.run,               -- The run.
  version bigint not null,                                  -- Version to score.
  updates bigint not null,                                  -- Policy updates of that version.
  step bigint not null,                                     -- Step after which it was requested.
  split text not null,                                      -- Split to score on.
  n bigint not null check (n > 0),                          -- Number of tasks, from the start of the split.
  next_idx bigint not null default 0,                       -- First task that was never opened.
  requested_at timestamptz not null default now(),          -- When it was requested.
  finished_at timestamptz,                                  -- When the last of its n tasks was scored or given up.
  unique (run, version, split),
  foreign key (run, version) references agentrl.policy_version
);
comment on table agentrl.schema_version is 'The version of this schema; the library refuses any other.';
comment on column agentrl.schema_version."version" is 'Number that the library compares with its own.';
comment on column agentrl.schema_version."created_at" is 'When this schema was created.';
comment on sequence agentrl.fence is 'Fencing numbers: whoever holds the greatest one for a row may write it.';
comment on table agentrl.run is 'One training run; its row is the lock of the protocol (shared by moves, exclusive for a trainer start).';
comment on column agentrl.run."id" is 'Key of the run in every other table.';
comment on column agentrl.run."name" is 'Name the user chose.';
comment on column agentrl.run."environment" is 'Environment that the tasks belong to.';
comment on column agentrl.run."config" is 'Resolved configuration as the run was started.';
comment on column agentrl.run."config_hash" is 'Hash of the resolved configuration.';
comment on column agentrl.run."seed" is 'Seed from which the episode seeds derive.';
comment on column agentrl.run."lag_bound" is 'Largest lag in policy updates of a trained token; NULL means unbounded.';
comment on column agentrl.run."batch_min" is 'Fewest trajectories in a step.';
comment on column agentrl.run."batch_max" is 'Most trajectories in a step; the batch of the admission rule.';
comment on column agentrl.run."group_size" is 'Trajectories per group; 1 means no groups.';
comment on column agentrl.run."target_steps" is 'Step after which nothing opens any more; NULL means no end.';
comment on column agentrl.run."max_running" is 'Most live training episodes when the lag is unbounded.';
comment on column agentrl.run."max_attempts" is 'Charged attempts of an episode before its seat is given up.';
comment on column agentrl.run."max_lease_attempts" is 'Claims that may end with a dead trainer before the item is dropped.';
comment on column agentrl.run."lease" is 'Lease of a live episode; each write renews it.';
comment on column agentrl.run."max_age" is 'Age at which an unclaimed trajectory is dropped; NULL means never.';
comment on column agentrl.run."status" is 'Whether work may open.';
comment on column agentrl.run."branch" is 'Live branch: one per trainer start.';
comment on column agentrl.run."trainer_fence" is 'Fence of the newest trainer.';
comment on column agentrl.run."trainer_owner" is 'Process that holds the fence; NULL when released.';
comment on column agentrl.run."trainer_lease" is 'Length of the trainer''s lease.';
comment on column agentrl.run."trainer_lease_until" is 'When the trainer''s lease lapses.';
comment on column agentrl.run."created_at" is 'When the run was created.';
comment on table agentrl.reap is 'When a run was last reaped; apart from the run row so that reaping never waits for its lock.';
comment on column agentrl.reap."run" is 'The run.';
comment on column agentrl.reap."at" is 'Last time that expired rows were collected.';
comment on table agentrl.task is 'The tasks of a run, in the order in which they are served.';
comment on column agentrl.task."run" is 'The run.';
comment on column agentrl.task."split" is 'Split of the data set.';
comment on column agentrl.task."idx" is 'Position in the split, from 0.';
comment on column agentrl.task."task_id" is 'The environment''s own id of the task.';
comment on column agentrl.task."payload" is 'What the environment needs to set the task up.';
comment on table agentrl.task_cursor is 'How far a run has got in each split; never rewound, so a resume neither skips nor repeats a task.';
comment on column agentrl.task_cursor."run" is 'The run.';
comment on column agentrl.task_cursor."split" is 'Split of the data set.';
comment on column agentrl.task_cursor."next" is 'Cursor of the next new task; modulo n is its idx, divided by n its epoch.';
comment on column agentrl.task_cursor."n" is 'Number of tasks in the split.';
comment on table agentrl.policy_version is 'Names of weights: unique, growing, never reused.';
comment on column agentrl.policy_version."run" is 'The run.';
comment on column agentrl.policy_version."version" is 'Name of the weights.';
comment on column agentrl.policy_version."parent" is 'Version that these weights continue; NULL for the root.';
comment on column agentrl.policy_version."updates" is 'Policy updates on the lineage of these weights.';
comment on column agentrl.policy_version."effective_update" is '2 * updates(common ancestor with the live head) - updates: lag counts from here.';
comment on column agentrl.policy_version."uri" is 'Where the weights lie.';
comment on column agentrl.policy_version."checksum" is 'Checksum of the weights.';
comment on column agentrl.policy_version."status" is 'Tokens may carry it from staged on; failed burns the name.';
comment on column agentrl.policy_version."branch" is 'Branch whose trainer staged it.';
comment on column agentrl.policy_version."fence" is 'Fence of that trainer.';
comment on column agentrl.policy_version."staged_at" is 'When the name was given.';
comment on column agentrl.policy_version."published_at" is 'When the weights were verified.';
comment on column agentrl.policy_version."failed_at" is 'When the name was burnt.';
comment on table agentrl.engine_version is 'Which engine loaded which version, and when.';
comment on column agentrl.engine_version."id" is 'Order of the loads.';
comment on column agentrl.engine_version."run" is 'The run.';
comment on column agentrl.engine_version."engine" is 'Name of the engine process.';
comment on column agentrl.engine_version."version" is 'Version that it loaded.';
comment on column agentrl.engine_version."loaded_at" is 'When it was loaded.';
comment on table agentrl.checkpoint is 'Checkpoints whose file was written and checksummed before the row.';
comment on column agentrl.checkpoint."id" is 'Key of the checkpoint.';
comment on column agentrl.checkpoint."run" is 'The run.';
comment on column agentrl.checkpoint."branch" is 'Branch that wrote it.';
comment on column agentrl.checkpoint."step" is 'Last step it contains.';
comment on column agentrl.checkpoint."updates" is 'Policy updates it contains.';
comment on column agentrl.checkpoint."version" is 'Newest version on its lineage.';
comment on column agentrl.checkpoint."uri" is 'Where the file lies; holds branch and fence, never overwritten.';
comment on column agentrl.checkpoint."checksum" is 'Checksum of the file.';
comment on column agentrl.checkpoint."fence" is 'Fence of the trainer that wrote it.';
comment on column agentrl.checkpoint."abandoned_by" is 'Branch whose start left this checkpoint behind; NULL on the live history.';
comment on column agentrl.checkpoint."at" is 'When it was committed.';
comment on table agentrl.evaluation is 'Requests to score a published version on the first n tasks of a split.';
comment on column agentrl.evaluation."id" is 'Key of the request.';
comment on column agentrl.evaluation."run" is 'The run.';
comment on column agentrl.evaluation."version" is 'Version to score.';
comment on column agentrl.evaluation."updates" is 'Policy updates of that version.';
comment on column agentrl.evaluation."step" is 'Step after which it was requested.';
comment on column agentrl.evaluation."split" is 'Split to score on.';
comment on column agentrl.evaluation."n" is 'Number of tasks, from the start of the split.';
comment on column agentrl.evaluation."next_idx" is 'First task that was never opened.';
comment on column agentrl.evaluation."requested_at" is 'When it was requested.';
comment on column agentrl.evaluation."finished_at" is 'When the last of its n tasks was scored or given up.';
-- 20_trajectories.sql
-- What happened in each episode: wide, cold rows, partitioned by (run, start_version) and never updated after their end.

-- One attempt at one task; written at its start and at its end only.
create table agentrl.trajectory (
  run bigint not null,                                      -- The run that created it.
  start_version bigint not null,                            -- Newest published version at the start: the partition key and nothing else.
  id uuid not null,                                         -- Key of the trajectory.
  purpose text not null check (purpose in ('train', 'eval')),     -- Whether it may be trained on.
  evaluation bigint,                                        -- Evaluation it belongs to; NULL for training.
  split text not null,                                      -- Split of its task.
  task_idx bigint not null,                                 -- Position of its task in the split.
  task_id text not null,                                    -- The environment's own id of the task.
  cursor bigint not null,                                   -- Task cursor that it was served from.
  grp uuid,                                                 -- Group it belongs to; NULL without groups.
  seat bigint not null,                                     -- Seat in the group, or task of the evaluation.
  attempt bigint not null,                                  -- Attempt at this seat, from 1.
  failures bigint not null default 0,                       -- Charged attempts before this one.
  retry_of uuid,                                            -- Attempt that it repeats.
  parent uuid,                                              -- Trajectory that started it as a sub-agent.
  seed bigint not null,                                     -- Seed of the episode.
  worker text not null,                                     -- Process that ran it.
  fence bigint not null,                                    -- Fence that its writes carried.
  model text not null,                                      -- Name of the policy model.
  tokenizer_hash text not null,                             -- Hash of the tokenizer.
  template_hash text not null,                              -- Hash of the chat template.
  engine text not null,                                     -- Inference engine.
  engine_version text not null,                             -- Release of the engine.
  engine_dtype text not null,                               -- Precision in which the engine computed.
  sampling jsonb not null,                                  -- Sampling parameters.
  logprob_kind text not null,                               -- Whether log-probs are of the sampled or of the raw distribution.
  environment text not null,                                -- Environment name.
  environment_version text not null,                        -- Environment version.
  sandbox text not null,                                    -- Provider and image digest of the sandbox.
  origin text not null check (origin in ('simulated', 'recorded', 'live')),        -- Where the traffic came from.
  started_at timestamptz not null default clock_timestamp(), -- When it was opened.
  ended_at timestamptz,                                     -- When its end was written.
  complete boolean not null default false,                  -- The end is written and all its segments are there, however it ended.
  termination text check (termination in ('terminated', 'truncated_turn_tokens', 'truncated_tokens', 'truncated_context', 'truncated_turns', 'truncated_time', 'aborted', 'failed')),  -- How it ended; NULL while running or when reaped.
  outcome text check (outcome in ('graded', 'policy_ended', 'infrastructure')),              -- Class of the ending.
  ended_to text check (ended_to in ('live', 'grade_job', 'graded', 'ready', 'lease', 'consumed', 'dropped', 'evaluated')),              -- Place that the completion moved it to.
  error text,                                               -- What failed, for infrastructure outcomes.
  n_segments bigint,                                        -- Segments stored at the end.
  n_tokens bigint,                                          -- Observation and action tokens.
  n_actions bigint,                                         -- Action tokens.
  versions bigint[],                                        -- Distinct policy versions of its action tokens, ascending.
  primary key (id, run, start_version)
) partition by range (run, start_version);
create index on agentrl.trajectory (grp) where grp is not null;

-- One turn: new observation tokens, then the action tokens sampled after them.
create table agentrl.segment (
  run bigint not null,                                      -- The run that created it.
  start_version bigint not null,                            -- Partition key of the trajectory.
  trajectory uuid not null,                                 -- The trajectory.
  seg bigint not null check (seg >= 0),                     -- Position in the trajectory, gap-free from 0.
  context bigint not null,                                  -- Context number; grows when history was compacted or rewritten.
  versions bigint[] not null,                               -- Distinct policy versions of the action tokens.
  token_versions bytea,                                     -- int32 little-endian version per action token; NULL when all are equal.
  n_obs bigint not null check (n_obs >= 0),                 -- New observation tokens.
  n_act bigint not null check (n_act >= 0),                 -- Action tokens.
  ids bytea not null,                                       -- int32 little-endian ids: observation, then action.
  logprobs bytea not null,                                  -- float32 little-endian log-probs of the action tokens.
  loss_mask bytea,                                          -- One byte per action token; NULL when all train.
  finish_reason text check (finish_reason in ('stop', 'length', 'abort')), -- Why the engine stopped.
  observation_text text not null,                           -- Observation as text; what text can't hold is replaced.
  action_text text not null,                                -- Action as text; what text can't hold is replaced.
  action_raw bytea,                                         -- Raw bytes of the action as the engine gave them.
  tool_calls json not null,                                 -- Parsed calls; what jsonb can't hold is replaced.
  tool_results json not null,                               -- Results of the calls; what jsonb can't hold is replaced.
  tool_raw bytea[],                                         -- Raw output per result; NULL when no result has any.
  exact bytea,                                              -- JSON of texts, calls and results as delivered; NULL when nothing was replaced.
  reward double precision,                                  -- Reward of the turn itself.
  queue_s double precision not null,                        -- Seconds waited for the engine.
  generate_s double precision not null,                     -- Seconds of generation.
  tool_s double precision not null,                         -- Seconds of tool execution.
  body_hash bytea not null,                                 -- Hash of the content; tells a repeated write from a conflicting one.
  stored_at timestamptz not null default clock_timestamp(), -- When it was stored.
  primary key (trajectory, seg, run, start_version),
  check (octet_length(ids) = 4 * (n_obs + n_act)),
  check (octet_length(logprobs) = 4 * n_act),
  check (octet_length(loss_mask) = n_act),
  check (octet_length(token_versions) = 4 * n_act)
) partition by range (run, start_version);

-- float32 arrays that a step used of a trajectory, over its action tokens in order.
create table agentrl.trained (
  run bigint not null,                                      -- The run that trained.
  start_version bigint not null,                            -- Partition key of the trajectory.
  trajectory uuid not null,                                 -- The trajectory.
  branch bigint not null,                                   -- Branch of the step.
  step bigint not null,                                     -- The step.
  reward_id bigint,                                         -- Reward row that the step used.
  logprobs bytea not null,                                  -- Log-probs under the trainer's weights.
  "values" bytea,                                           -- Values of the critic.
  advantages bytea not null,                                -- Advantages.
  returns bytea,                                            -- Returns.
  primary key (trajectory, branch, step, run, start_version)
) partition by range (run, start_version);

-- Verdicts; a re-grade adds a row and the newest counts.
create table agentrl.reward (
  id bigint generated always as identity primary key,       -- Order of the verdicts.
  run bigint not null,                                      -- The run.
  trajectory uuid not null,                                 -- The trajectory.
  grader text not null,                                     -- Who graded.
  grader_version text not null,                             -- Version of the grader.
  value double precision not null check (value > '-infinity' and value < 'infinity'), -- The reward; always finite.
  success boolean,                                          -- The environment's own yes or no.
  detail json not null,                                     -- What the grader adds.
  duration_s double precision not null,                     -- Seconds of grading.
  at timestamptz not null default clock_timestamp()         -- When the verdict was given.
);
create index on agentrl.reward (trajectory, id);

-- Creates the partitions for one bucket of versions. LIKE + CHECK + ATTACH takes no lock that stops writers, and lock_timeout
-- keeps a forgotten transaction from making anybody queue behind us.
create function agentrl.add_partitions_v1(run_ bigint, bucket bigint) returns void language plpgsql as $$
declare
  width constant bigint := 64;
  low bigint := bucket * width;
  high bigint := low + width;
  parent text;
  part text;
begin
  perform pg_advisory_xact_lock(hashtext('agentrl.partitions'), run_::int);
  foreach parent in array array['trajectory', 'segment', 'trained'] loop
    part := format('%s_r%s_v%s', parent, run_, low);
    continue when to_regclass(format('agentrl.%I', part)) is not null;
    perform set_config('lock_timeout', '2s', true);
    execute format('create table agentrl.%I (like agentrl.%I including all)', part, parent);
    execute format('alter table agentrl.%I add check (run = %s and start_version >= %s and start_version < %s)',
                   part, run_, low, high);
    execute format('alter table agentrl.%I attach partition agentrl.%I for values from (%s, %s) to (%s, %s)',
                   parent, part, run_, low, run_, high);
    perform set_config('lock_timeout', '0', true);
  end loop;
end $$;

-- Makes sure that a version has its partitions, and those that come soon; only the former may fail the caller.
create function agentrl.ensure_partitions_v1(run_ bigint, version_ bigint) returns void language plpgsql as $$
begin
  perform agentrl.add_partitions_v1(run_, version_ / 64);
  begin
    perform agentrl.add_partitions_v1(run_, (version_ + 16) / 64);
  exception when lock_not_available then
    raise notice 'partitions of run % after version % wait for a lock; the next version tries again', run_, version_;
  end;
end $$;

-- lz4 costs a third of pglz, but not every server is built with it.
do $$
begin
  alter table agentrl.segment alter ids set compression lz4, alter logprobs set compression lz4,
    alter observation_text set compression lz4, alter action_text set compression lz4, alter tool_results set compression lz4;
exception when feature_not_supported or invalid_parameter_value then
  raise notice 'this server has no lz4; segments are compressed with pglz';
end $$;
comment on table agentrl.trajectory is 'One attempt at one task; written at its start and at its end only.';
comment on column agentrl.trajectory."run" is 'The run that created it.';
comment on column agentrl.trajectory."start_version" is 'Newest published version at the start: the partition key and nothing else.';
comment on column agentrl.trajectory."id" is 'Key of the trajectory.';
comment on column agentrl.trajectory."purpose" is 'Whether it may be trained on.';
comment on column agentrl.trajectory."evaluation" is 'Evaluation it belongs to; NULL for training.';
comment on column agentrl.trajectory."split" is 'Split of its task.';
comment on column agentrl.trajectory."task_idx" is 'Position of its task in the split.';
comment on column agentrl.trajectory."task_id" is 'The environment''s own id of the task.';
comment on column agentrl.trajectory."cursor" is 'Task cursor that it was served from.';
comment on column agentrl.trajectory."grp" is 'Group it belongs to; NULL without groups.';
comment on column agentrl.trajectory."seat" is 'Seat in the group, or task of the evaluation.';
comment on column agentrl.trajectory."attempt" is 'Attempt at this seat, from 1.';
comment on column agentrl.trajectory."failures" is 'Charged attempts before this one.';
comment on column agentrl.trajectory."retry_of" is 'Attempt that it repeats.';
comment on column agentrl.trajectory."parent" is 'Trajectory that started it as a sub-agent.';
comment on column agentrl.trajectory."seed" is 'Seed of the episode.';
comment on column agentrl.trajectory."worker" is 'Process that ran it.';
comment on column agentrl.trajectory."fence" is 'Fence that its writes carried.';
comment on column agentrl.trajectory."model" is 'Name of the policy model.';
comment on column agentrl.trajectory."tokenizer_hash" is 'Hash of the tokenizer.';
comment on column agentrl.trajectory."template_hash" is 'Hash of the chat template.';
comment on column agentrl.trajectory."engine" is 'Inference engine.';
comment on column agentrl.trajectory."engine_version" is 'Release of the engine.';
comment on column agentrl.trajectory."engine_dtype" is 'Precision in which the engine computed.';
comment on column agentrl.trajectory."sampling" is 'Sampling parameters.';
comment on column agentrl.trajectory."logprob_kind" is 'Whether log-probs are of the sampled or of the raw distribution.';
comment on column agentrl.trajectory."environment" is 'Environment name.';
comment on column agentrl.trajectory."environment_version" is 'Environment version.';
comment on column agentrl.trajectory."sandbox" is 'Provider and image digest of the sandbox.';
comment on column agentrl.trajectory."origin" is 'Where the traffic came from.';
comment on column agentrl.trajectory."started_at" is 'When it was opened.';
comment on column agentrl.trajectory."ended_at" is 'When its end was written.';
comment on column agentrl.trajectory."complete" is 'The end is written and all its segments are there, however it ended.';
comment on column agentrl.trajectory."termination" is 'How it ended; NULL while running or when reaped.';
comment on column agentrl.trajectory."outcome" is 'Class of the ending.';
comment on column agentrl.trajectory."ended_to" is 'Place that the completion moved it to.';
comment on column agentrl.trajectory."error" is 'What failed, for infrastructure outcomes.';
comment on column agentrl.trajectory."n_segments" is 'Segments stored at the end.';
comment on column agentrl.trajectory."n_tokens" is 'Observation and action tokens.';
comment on column agentrl.trajectory."n_actions" is 'Action tokens.';
comment on column agentrl.trajectory."versions" is 'Distinct policy versions of its action tokens, ascending.';
comment on table agentrl.segment is 'One turn: new observation tokens, then the action tokens sampled after them.';
comment on column agentrl.segment."run" is 'The run that created it.';
comment on column agentrl.segment."start_version" is 'Partition key of the trajectory.';
comment on column agentrl.segment."trajectory" is 'The trajectory.';
comment on column agentrl.segment."seg" is 'Position in the trajectory, gap-free from 0.';
comment on column agentrl.segment."context" is 'Context number; grows when history was compacted or rewritten.';
comment on column agentrl.segment."versions" is 'Distinct policy versions of the action tokens.';
comment on column agentrl.segment."token_versions" is 'int32 little-endian version per action token; NULL when all are equal.';
comment on column agentrl.segment."n_obs" is 'New observation tokens.';
comment on column agentrl.segment."n_act" is 'Action tokens.';
comment on column agentrl.segment."ids" is 'int32 little-endian ids: observation, then action.';
comment on column agentrl.segment."logprobs" is 'float32 little-endian log-probs of the action tokens.';
comment on column agentrl.segment."loss_mask" is 'One byte per action token; NULL when all train.';
comment on column agentrl.segment."finish_reason" is 'Why the engine stopped.';
comment on column agentrl.segment."observation_text" is 'Observation as text; what text can''t hold is replaced.';
comment on column agentrl.segment."action_text" is 'Action as text; what text can''t hold is replaced.';
comment on column agentrl.segment."action_raw" is 'Raw bytes of the action as the engine gave them.';
comment on column agentrl.segment."tool_calls" is 'Parsed calls; what jsonb can''t hold is replaced.';
comment on column agentrl.segment."tool_results" is 'Results of the calls; what jsonb can''t hold is replaced.';
comment on column agentrl.segment."tool_raw" is 'Raw output per result; NULL when no result has any.';
comment on column agentrl.segment."exact" is 'JSON of texts, calls and results as delivered; NULL when nothing was replaced.';
comment on column agentrl.segment."reward" is 'Reward of the turn itself.';
comment on column agentrl.segment."queue_s" is 'Seconds waited for the engine.';
comment on column agentrl.segment."generate_s" is 'Seconds of generation.';
comment on column agentrl.segment."tool_s" is 'Seconds of tool execution.';
comment on column agentrl.segment."body_hash" is 'Hash of the content; tells a repeated write from a conflicting one.';
comment on column agentrl.segment."stored_at" is 'When it was stored.';
comment on table agentrl.trained is 'float32 arrays that a step used of a trajectory, over its action tokens in order.';
comment on column agentrl.trained."run" is 'The run that trained.';
comment on column agentrl.trained."start_version" is 'Partition key of the trajectory.';
comment on column agentrl.trained."trajectory" is 'The trajectory.';
comment on column agentrl.trained."branch" is 'Branch of the step.';
comment on column agentrl.trained."step" is 'The step.';
comment on column agentrl.trained."reward_id" is 'Reward row that the step used.';
comment on column agentrl.trained."logprobs" is 'Log-probs under the trainer''s weights.';
comment on column agentrl.trained."values" is 'Values of the critic.';
comment on column agentrl.trained."advantages" is 'Advantages.';
comment on column agentrl.trained."returns" is 'Returns.';
comment on table agentrl.reward is 'Verdicts; a re-grade adds a row and the newest counts.';
comment on column agentrl.reward."id" is 'Order of the verdicts.';
comment on column agentrl.reward."run" is 'The run.';
comment on column agentrl.reward."trajectory" is 'The trajectory.';
comment on column agentrl.reward."grader" is 'Who graded.';
comment on column agentrl.reward."grader_version" is 'Version of the grader.';
comment on column agentrl.reward."value" is 'The reward; always finite.';
comment on column agentrl.reward."success" is 'The environment''s own yes or no.';
comment on column agentrl.reward."detail" is 'What the grader adds.';
comment on column agentrl.reward."duration_s" is 'Seconds of grading.';
comment on column agentrl.reward."at" is 'When the verdict was given.';
comment on function agentrl.add_partitions_v1 is 'Creates the partitions for one bucket of versions. LIKE + CHECK + ATTACH takes no lock that stops writers, and lock_timeout keeps a forgotten transaction from making anybody queue behind us.';
comment on function agentrl.ensure_partitions_v1 is 'Makes sure that a version has its partitions, and those that come soon; only the former may fail the caller.';
-- 21_decode.sql
-- Reading raw buffers in SQL. The forced copy (d) decompresses the value once instead of once per byte.

-- int32 little-endian buffer as an array.
create function agentrl.i4(b bytea) returns int4[] language plpgsql immutable strict parallel safe as $$
declare
  d bytea := b || ''::bytea;
begin
  return (select coalesce(array_agg(get_byte(d, i) | (get_byte(d, i + 1) << 8) | (get_byte(d, i + 2) << 16)
                                    | (get_byte(d, i + 3) << 24) order by i), '{}')
          from generate_series(0, length(d) - 4, 4) i);
end $$;

-- float32 little-endian buffer as an array, exact to the last bit.
create function agentrl.f4(b bytea) returns float4[] language plpgsql immutable strict parallel safe as $$
declare
  d bytea := b || ''::bytea;
begin
  return (
    select coalesce(array_agg(
      case when u & 2147483647 = 0 then 0::float4
      else ((case when u < 0 then -1 else 1 end) * case (u >> 23) & 255
        when 0 then (u & 8388607) * 1.4012984643248171e-45::float8
        when 255 then case when u & 8388607 = 0 then 'infinity'::float8 else 'nan'::float8 end
        else (8388608 + (u & 8388607)) * power(2::float8, ((u >> 23) & 255) - 150) end)::float4 end order by i), '{}')
    from (select i, get_byte(d, i) | (get_byte(d, i + 1) << 8) | (get_byte(d, i + 2) << 16) | (get_byte(d, i + 3) << 24) u
          from generate_series(0, length(d) - 4, 4) i) s);
end $$;

-- Segments with decoded arrays and shortened texts, for reading by people.
create view agentrl.segment_debug as
select run, trajectory, seg, context, versions, n_obs, n_act, finish_reason, reward, agentrl.i4(ids) as ids,
       agentrl.f4(logprobs) as logprobs,
       coalesce(agentrl.i4(token_versions)::bigint[], array_fill(versions[1], array[n_act::int])) as token_versions,
       case when loss_mask is null then array_fill(1::int2, array[n_act::int])
            else (select array_agg(get_byte(loss_mask, i)::int2 order by i) from generate_series(0, n_act::int - 1) i) end as loss_mask,
       left(observation_text, 400) as observation, left(action_text, 400) as action, tool_calls, left(tool_results::text, 400) as results,
       queue_s, generate_s, tool_s, stored_at
from agentrl.segment;

-- The id of a run given by id, by name or as "latest".
create function agentrl.find_run_v1(run_ text) returns bigint language plpgsql stable as $$
declare
  id_ bigint;
begin
  select id into id_ from agentrl.run
  where name = run_ or id::text = run_ or run_ = 'latest'
  order by (name = run_) desc, id desc limit 1;
  if id_ is null then
    perform agentrl.fail_v1('AR009', format('there is no run "%s"', run_));
  end if;
  return id_;
end $$;
comment on function agentrl.i4 is 'int32 little-endian buffer as an array.';
comment on function agentrl.f4 is 'float32 little-endian buffer as an array, exact to the last bit.';
comment on view agentrl.segment_debug is 'Segments with decoded arrays and shortened texts, for reading by people.';
comment on function agentrl.find_run_v1 is 'The id of a run given by id, by name or as "latest".';
-- 30_places.sql
-- State is where the row is: each training trajectory is in exactly one of the seven places. Rows move only in functions.

-- A group of trajectories of one task; its row is the lock under which every end of a member re-evaluates it.
create table agentrl.grp (
  id uuid primary key,                                      -- Key of the group; the item's key in ready and lease.
  run bigint not null references agentrl.run,               -- The run.
  split text not null,                                      -- Split of the task.
  task_idx bigint not null,                                 -- Position of the task.
  cursor bigint not null,                                   -- Task cursor that it was served from.
  size bigint not null,                                     -- Number of seats.
  next_seat bigint not null default 0,                      -- First seat that was never opened.
  state text not null default 'open' check (state in ('open', 'complete', 'dropped')), -- Open until all seats are graded or one is lost.
  created_at timestamptz not null default clock_timestamp() -- When it was opened.
);
create index on agentrl.grp (run, created_at) where state = 'open';

-- Running episodes; no index on lease_until, so renewals stay in the page.
create table agentrl.live (
  trajectory uuid primary key,                              -- The trajectory.
  run bigint not null,                                      -- The run.
  start_version bigint not null,                            -- Partition key of the trajectory.
  purpose text not null check (purpose in ('train', 'eval')),     -- Training or evaluation.
  grp uuid,                                                 -- Its group.
  worker text not null,                                     -- Process that runs it.
  fence bigint not null,                                    -- Fence that its writes must carry.
  next_seg bigint not null default 0,                       -- Index of the segment expected next.
  n_tokens bigint not null default 0,                       -- Observation and action tokens stored so far.
  n_actions bigint not null default 0,                      -- Action tokens stored so far.
  versions bigint[] not null default '{}',                  -- Distinct policy versions of the action tokens so far, ascending.
  lease interval not null,                                  -- Length of the lease.
  lease_until timestamptz not null                          -- When the lease lapses.
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
create index on agentrl.live (run);

-- Ended episodes that wait for a verdict from a reward worker.
create table agentrl.grade_job (
  trajectory uuid primary key,                              -- The trajectory.
  run bigint not null,                                      -- The run.
  start_version bigint not null,                            -- Partition key of the trajectory.
  purpose text not null check (purpose in ('train', 'eval')),     -- Training or evaluation.
  grp uuid,                                                 -- Its group.
  worker text,                                              -- Reward worker that holds it; NULL when free.
  fence bigint,                                             -- Fence of that worker.
  lease interval,                                           -- Length of its lease.
  lease_until timestamptz,                                  -- When its lease lapses.
  at timestamptz not null default clock_timestamp()         -- When it arrived.
);
create index on agentrl.grade_job (run);

-- Graded (or truncated and ungraded) members that wait for their group.
create table agentrl.graded (
  trajectory uuid primary key,                              -- The trajectory.
  run bigint not null,                                      -- The run.
  start_version bigint not null,                            -- Partition key of the trajectory.
  grp uuid not null,                                        -- The group it waits for.
  at timestamptz not null default clock_timestamp()         -- When it arrived.
);
create index on agentrl.graded (grp);
create index on agentrl.graded (run);

-- Items that a trainer may claim: a trajectory, or a whole group. Keys start with the consuming run.
create table agentrl.ready (
  run bigint not null,                                      -- The consuming run.
  item uuid not null,                                       -- Trajectory or group.
  trajectories uuid[] not null,                             -- Its trajectories, by seat.
  start_versions bigint[] not null,                         -- Partition keys of the trajectories.
  n_traj bigint not null check (n_traj = cardinality(trajectories)), -- Number of trajectories.
  n_tokens bigint not null,                                 -- Tokens of all trajectories.
  oldest_update bigint not null,                            -- Lag is updates(head) minus this; may be negative on a dead branch.
  attempts bigint not null default 0,                       -- Claims that ended with a dead trainer.
  oldest_start timestamptz not null,                        -- When its first trajectory was opened; age counts from here.
  at timestamptz not null default clock_timestamp(),        -- When it arrived.
  primary key (run, item)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Items that a trainer holds.
create table agentrl.lease (
  run bigint not null,                                      -- The consuming run.
  item uuid not null,                                       -- Trajectory or group.
  token bigint not null,                                    -- Token of the claim that took it.
  fence bigint not null,                                    -- Trainer fence under which it was claimed.
  trajectories uuid[] not null,                             -- Its trajectories, by seat.
  start_versions bigint[] not null,                         -- Partition keys of the trajectories.
  n_traj bigint not null,                                   -- Number of trajectories.
  n_tokens bigint not null,                                 -- Tokens of all trajectories.
  oldest_update bigint not null,                            -- Lag is updates(head) minus this.
  attempts bigint not null,                                 -- Claims that ended with a dead trainer before this one.
  in_update boolean not null default false,                 -- Renewed for the optimizer step: a trainer that dies from here on is charged.
  oldest_start timestamptz not null,                        -- When its first trajectory was opened.
  ready_at timestamptz not null,                            -- When the item became ready; kept on a release.
  leased_at timestamptz not null default clock_timestamp(), -- When it was claimed.
  lease interval not null,                                  -- Length of the lease.
  lease_until timestamptz not null,                         -- When the lease lapses.
  primary key (run, item)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- The ledger of steps; the live history is the rows without abandoned_by.
create table agentrl.step (
  run bigint not null references agentrl.run,               -- The run.
  branch bigint not null,                                   -- Branch that took the step.
  step bigint not null,                                     -- Number of the step, gap-free on the live history.
  updates bigint not null,                                  -- Policy updates after the step.
  policy_updated boolean not null,                          -- False for a step of the critic alone.
  trainer_version bigint not null,                          -- Version whose weights computed the current log-probs.
  batch_hash text not null,                                 -- Hash of the batch; a repeated commit is known by it.
  n_items bigint not null,                                  -- Items consumed.
  n_trajectories bigint not null,                           -- Trajectories consumed.
  denominators jsonb not null,                              -- What the losses were divided by.
  metrics jsonb not null,                                   -- Numbers that the trainer reports.
  fence bigint not null,                                    -- Fence of the trainer.
  abandoned_by bigint,                                      -- Branch whose start left this step behind; NULL on the live history.
  at timestamptz not null default clock_timestamp(),        -- When it was committed.
  primary key (run, branch, step)
);
create unique index on agentrl.step (run, step) where abandoned_by is null;

-- The ledger of data: what trained which step, a row per trajectory even for groups.
create table agentrl.consumed (
  run bigint not null,                                      -- The consuming run.
  branch bigint not null,                                   -- Branch of the step.
  step bigint not null,                                     -- The step.
  item uuid not null,                                       -- Trajectory or group.
  trajectory uuid not null,                                 -- The trajectory.
  start_version bigint not null,                            -- Partition key of the trajectory.
  token bigint not null,                                    -- Token of the claim.
  oldest_update bigint not null,                            -- The item's oldest update when it was consumed.
  lag bigint not null,                                      -- Lag of the item's oldest token when it was consumed.
  abandoned_by bigint,                                      -- Branch whose start left the step behind; NULL on the live history.
  at timestamptz not null default clock_timestamp(),        -- When it was consumed.
  primary key (run, branch, trajectory),
  foreign key (run, branch, step) references agentrl.step
);
create unique index on agentrl.consumed (run, trajectory) where abandoned_by is null;
create index on agentrl.consumed (run, step);

-- Trajectories that will not be trained on, each with one exact reason.
create table agentrl.dropped (
  run bigint not null,                                      -- The run.
  trajectory uuid not null,                                 -- The trajectory.
  start_version bigint not null,                            -- Partition key of the trajectory.
  purpose text not null check (purpose in ('train', 'eval')),     -- Training or evaluation.
  evaluation bigint,                                        -- Evaluation it belongs to.
  grp uuid,                                                 -- Its group.
  from_place text not null check (from_place in ('live', 'grade_job', 'graded', 'ready', 'lease', 'consumed', 'dropped', 'evaluated')), -- Place it was dropped from.
  reason text not null check (reason in ('stale', 'too_old', 'overlong', 'zero_action', 'token_drift', 'non_finite', 'infrastructure', 'superseded', 'duplicate', 'cancelled', 'abandoned_branch', 'group_incomplete', 'zero_variance', 'empty_after_mask', 'bad_versions', 'ungraded', 'max_attempts')),    -- Why.
  detail text,                                              -- What exactly happened.
  charged boolean not null,                                 -- Whether the attempt counts against max_attempts.
  retryable boolean not null,                               -- Whether its seat may be served again.
  retried_by uuid,                                          -- Attempt that repeats it; a retry is pending while retryable and this is NULL.
  at timestamptz not null default clock_timestamp(),        -- When it was dropped.
  primary key (run, trajectory)
);
create index on agentrl.dropped (run, at) where retryable and retried_by is null;
create index on agentrl.dropped (grp) where grp is not null;
create index on agentrl.dropped (evaluation) where evaluation is not null;

-- Finished evaluation episodes.
create table agentrl.evaluated (
  run bigint not null,                                      -- The run.
  trajectory uuid not null,                                 -- The trajectory.
  start_version bigint not null,                            -- Partition key of the trajectory.
  evaluation bigint not null references agentrl.evaluation, -- Evaluation it belongs to.
  at timestamptz not null default clock_timestamp(),        -- When it arrived.
  primary key (run, trajectory)
);
create index on agentrl.evaluated (evaluation);

-- Requests that opened episodes: the same request gives the same episodes again.
create table agentrl.open_request (
  request uuid primary key,                                 -- The worker's own id of the request.
  run bigint not null,                                      -- The run.
  worker text not null,                                     -- Process that asked.
  start_version bigint not null,                            -- Partition key of the episodes.
  trajectories uuid[] not null,                             -- Episodes it was given.
  at timestamptz not null default clock_timestamp()         -- When it was served.
);

-- Who moved what from where to where, when, under which fence, and why.
create table agentrl.event (
  id bigint generated always as identity primary key,       -- Order of the moves.
  run bigint not null,                                      -- The run.
  trajectory uuid not null,                                 -- The trajectory that moved.
  from_place text check (from_place in ('live', 'grade_job', 'graded', 'ready', 'lease', 'consumed', 'dropped', 'evaluated')),          -- Place it left; NULL at its start.
  to_place text not null check (to_place in ('live', 'grade_job', 'graded', 'ready', 'lease', 'consumed', 'dropped', 'evaluated')),     -- Place it came to.
  fence bigint,                                             -- Fence of whoever moved it.
  actor text not null,                                      -- Who moved it.
  why text not null,                                        -- The occasion.
  at timestamptz not null default clock_timestamp()         -- When.
);
create index on agentrl.event (trajectory, id);
comment on table agentrl.grp is 'A group of trajectories of one task; its row is the lock under which every end of a member re-evaluates it.';
comment on column agentrl.grp."id" is 'Key of the group; the item''s key in ready and lease.';
comment on column agentrl.grp."run" is 'The run.';
comment on column agentrl.grp."split" is 'Split of the task.';
comment on column agentrl.grp."task_idx" is 'Position of the task.';
comment on column agentrl.grp."cursor" is 'Task cursor that it was served from.';
comment on column agentrl.grp."size" is 'Number of seats.';
comment on column agentrl.grp."next_seat" is 'First seat that was never opened.';
comment on column agentrl.grp."state" is 'Open until all seats are graded or one is lost.';
comment on column agentrl.grp."created_at" is 'When it was opened.';
comment on table agentrl.live is 'Running episodes; no index on lease_until, so renewals stay in the page.';
comment on column agentrl.live."trajectory" is 'The trajectory.';
comment on column agentrl.live."run" is 'The run.';
comment on column agentrl.live."start_version" is 'Partition key of the trajectory.';
comment on column agentrl.live."purpose" is 'Training or evaluation.';
comment on column agentrl.live."grp" is 'Its group.';
comment on column agentrl.live."worker" is 'Process that runs it.';
comment on column agentrl.live."fence" is 'Fence that its writes must carry.';
comment on column agentrl.live."next_seg" is 'Index of the segment expected next.';
comment on column agentrl.live."n_tokens" is 'Observation and action tokens stored so far.';
comment on column agentrl.live."n_actions" is 'Action tokens stored so far.';
comment on column agentrl.live."versions" is 'Distinct policy versions of the action tokens so far, ascending.';
comment on column agentrl.live."lease" is 'Length of the lease.';
comment on column agentrl.live."lease_until" is 'When the lease lapses.';
comment on table agentrl.grade_job is 'Ended episodes that wait for a verdict from a reward worker.';
comment on column agentrl.grade_job."trajectory" is 'The trajectory.';
comment on column agentrl.grade_job."run" is 'The run.';
comment on column agentrl.grade_job."start_version" is 'Partition key of the trajectory.';
comment on column agentrl.grade_job."purpose" is 'Training or evaluation.';
comment on column agentrl.grade_job."grp" is 'Its group.';
comment on column agentrl.grade_job."worker" is 'Reward worker that holds it; NULL when free.';
comment on column agentrl.grade_job."fence" is 'Fence of that worker.';
comment on column agentrl.grade_job."lease" is 'Length of its lease.';
comment on column agentrl.grade_job."lease_until" is 'When its lease lapses.';
comment on column agentrl.grade_job."at" is 'When it arrived.';
comment on table agentrl.graded is 'Graded (or truncated and ungraded) members that wait for their group.';
comment on column agentrl.graded."trajectory" is 'The trajectory.';
comment on column agentrl.graded."run" is 'The run.';
comment on column agentrl.graded."start_version" is 'Partition key of the trajectory.';
comment on column agentrl.graded."grp" is 'The group it waits for.';
comment on column agentrl.graded."at" is 'When it arrived.';
comment on table agentrl.ready is 'Items that a trainer may claim: a trajectory, or a whole group. Keys start with the consuming run.';
comment on column agentrl.ready."run" is 'The consuming run.';
comment on column agentrl.ready."item" is 'Trajectory or group.';
comment on column agentrl.ready."trajectories" is 'Its trajectories, by seat.';
comment on column agentrl.ready."start_versions" is 'Partition keys of the trajectories.';
comment on column agentrl.ready."n_traj" is 'Number of trajectories.';
comment on column agentrl.ready."n_tokens" is 'Tokens of all trajectories.';
comment on column agentrl.ready."oldest_update" is 'Lag is updates(head) minus this; may be negative on a dead branch.';
comment on column agentrl.ready."attempts" is 'Claims that ended with a dead trainer.';
comment on column agentrl.ready."oldest_start" is 'When its first trajectory was opened; age counts from here.';
comment on column agentrl.ready."at" is 'When it arrived.';
comment on table agentrl.lease is 'Items that a trainer holds.';
comment on column agentrl.lease."run" is 'The consuming run.';
comment on column agentrl.lease."item" is 'Trajectory or group.';
comment on column agentrl.lease."token" is 'Token of the claim that took it.';
comment on column agentrl.lease."fence" is 'Trainer fence under which it was claimed.';
comment on column agentrl.lease."trajectories" is 'Its trajectories, by seat.';
comment on column agentrl.lease."start_versions" is 'Partition keys of the trajectories.';
comment on column agentrl.lease."n_traj" is 'Number of trajectories.';
comment on column agentrl.lease."n_tokens" is 'Tokens of all trajectories.';
comment on column agentrl.lease."oldest_update" is 'Lag is updates(head) minus this.';
comment on column agentrl.lease."attempts" is 'Claims that ended with a dead trainer before this one.';
comment on column agentrl.lease."in_update" is 'Renewed for the optimizer step: a trainer that dies from here on is charged.';
comment on column agentrl.lease."oldest_start" is 'When its first trajectory was opened.';
comment on column agentrl.lease."ready_at" is 'When the item became ready; kept on a release.';
comment on column agentrl.lease."leased_at" is 'When it was claimed.';
comment on column agentrl.lease."lease" is 'Length of the lease.';
comment on column agentrl.lease."lease_until" is 'When the lease lapses.';
comment on table agentrl.step is 'The ledger of steps; the live history is the rows without abandoned_by.';
comment on column agentrl.step."run" is 'The run.';
comment on column agentrl.step."branch" is 'Branch that took the step.';
comment on column agentrl.step."step" is 'Number of the step, gap-free on the live history.';
comment on column agentrl.step."updates" is 'Policy updates after the step.';
comment on column agentrl.step."policy_updated" is 'False for a step of the critic alone.';
comment on column agentrl.step."trainer_version" is 'Version whose weights computed the current log-probs.';
comment on column agentrl.step."batch_hash" is 'Hash of the batch; a repeated commit is known by it.';
comment on column agentrl.step."n_items" is 'Items consumed.';
comment on column agentrl.step."n_trajectories" is 'Trajectories consumed.';
comment on column agentrl.step."denominators" is 'What the losses were divided by.';
comment on column agentrl.step."metrics" is 'Numbers that the trainer reports.';
comment on column agentrl.step."fence" is 'Fence of the trainer.';
comment on column agentrl.step."abandoned_by" is 'Branch whose start left this step behind; NULL on the live history.';
comment on column agentrl.step."at" is 'When it was committed.';
comment on table agentrl.consumed is 'The ledger of data: what trained which step, a row per trajectory even for groups.';
comment on column agentrl.consumed."run" is 'The consuming run.';
comment on column agentrl.consumed."branch" is 'Branch of the step.';
comment on column agentrl.consumed."step" is 'The step.';
comment on column agentrl.consumed."item" is 'Trajectory or group.';
comment on column agentrl.consumed."trajectory" is 'The trajectory.';
comment on column agentrl.consumed."start_version" is 'Partition key of the trajectory.';
comment on column agentrl.consumed."token" is 'Token of the claim.';
comment on column agentrl.consumed."oldest_update" is 'The item''s oldest update when it was consumed.';
comment on column agentrl.consumed."lag" is 'Lag of the item''s oldest token when it was consumed.';
comment on column agentrl.consumed."abandoned_by" is 'Branch whose start left the step behind; NULL on the live history.';
comment on column agentrl.consumed."at" is 'When it was consumed.';
comment on table agentrl.dropped is 'Trajectories that will not be trained on, each with one exact reason.';
comment on column agentrl.dropped."run" is 'The run.';
comment on column agentrl.dropped."trajectory" is 'The trajectory.';
comment on column agentrl.dropped."start_version" is 'Partition key of the trajectory.';
comment on column agentrl.dropped."purpose" is 'Training or evaluation.';
comment on column agentrl.dropped."evaluation" is 'Evaluation it belongs to.';
comment on column agentrl.dropped."grp" is 'Its group.';
comment on column agentrl.dropped."from_place" is 'Place it was dropped from.';
comment on column agentrl.dropped."reason" is 'Why.';
comment on column agentrl.dropped."detail" is 'What exactly happened.';
comment on column agentrl.dropped."charged" is 'Whether the attempt counts against max_attempts.';
comment on column agentrl.dropped."retryable" is 'Whether its seat may be served again.';
comment on column agentrl.dropped."retried_by" is 'Attempt that repeats it; a retry is pending while retryable and this is NULL.';
comment on column agentrl.dropped."at" is 'When it was dropped.';
comment on table agentrl.evaluated is 'Finished evaluation episodes.';
comment on column agentrl.evaluated."run" is 'The run.';
comment on column agentrl.evaluated."trajectory" is 'The trajectory.';
comment on column agentrl.evaluated."start_version" is 'Partition key of the trajectory.';
comment on column agentrl.evaluated."evaluation" is 'Evaluation it belongs to.';
comment on column agentrl.evaluated."at" is 'When it arrived.';
comment on table agentrl.open_request is 'Requests that opened episodes: the same request gives the same episodes again.';
comment on column agentrl.open_request."request" is 'The worker''s own id of the request.';
comment on column agentrl.open_request."run" is 'The run.';
comment on column agentrl.open_request."worker" is 'Process that asked.';
comment on column agentrl.open_request."start_version" is 'Partition key of the episodes.';
comment on column agentrl.open_request."trajectories" is 'Episodes it was given.';
comment on column agentrl.open_request."at" is 'When it was served.';
comment on table agentrl.event is 'Who moved what from where to where, when, under which fence, and why.';
comment on column agentrl.event."id" is 'Order of the moves.';
comment on column agentrl.event."run" is 'The run.';
comment on column agentrl.event."trajectory" is 'The trajectory that moved.';
comment on column agentrl.event."from_place" is 'Place it left; NULL at its start.';
comment on column agentrl.event."to_place" is 'Place it came to.';
comment on column agentrl.event."fence" is 'Fence of whoever moved it.';
comment on column agentrl.event."actor" is 'Who moved it.';
comment on column agentrl.event."why" is 'The occasion.';
comment on column agentrl.event."at" is 'When.';
-- 40_moves.sql
-- What all moves share. Lock order everywhere: run (shared), admission (advisory), group, then the rows of the places.

-- Raises a typed error; the client maps the code (class AR) to its exception.
create function agentrl.fail_v1(code text, msg text, next_seg bigint default null) returns void language plpgsql as $$
begin
  raise exception using errcode = code, message = msg, detail = coalesce(next_seg::text, '');
end $$;

-- When the server started; leases of before are counted from there.
create function agentrl.server_started_v1() returns timestamptz language sql stable as $$
  select pg_postmaster_start_time()
$$;

-- Whether a lease has lapsed. A server that was down must not reap living workers: every lease lasts at least until one lease
-- after the server's start.
create function agentrl.lapsed_v1(until timestamptz, lease interval) returns boolean language sql stable as $$
  select greatest(until, agentrl.server_started_v1() + lease) < now()
$$;

-- Locks the run row for the length of the transaction so that no trainer can start meanwhile.
create function agentrl.hold_run_v1(run_ bigint) returns agentrl.run language plpgsql as $$
declare
  r agentrl.run;
begin
  select * into r from agentrl.run where id = run_ for share;
  if not found then
    perform agentrl.fail_v1('AR009', format('there is no run with id %s', run_));
  end if;
  return r;
end $$;

-- Holds the run row and checks that the caller is its trainer.
create function agentrl.hold_trainer_v1(run_ bigint, fence_ bigint) returns agentrl.run language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_run_v1(run_);
begin
  if r.trainer_fence is distinct from fence_ or r.trainer_owner is null then
    perform agentrl.fail_v1('AR001', format(
      'trainer fence %s of run "%s" is no longer valid (now: fence %s, held by %s): this trainer must exit',
      fence_, r.name, r.trainer_fence, coalesce(r.trainer_owner, 'nobody')));
  end if;
  return r;
end $$;

-- Where the live history stands.
create function agentrl.head_v1(run_ bigint, out step bigint, out updates bigint) language sql stable as $$
  select coalesce(max(s.step), 0), coalesce(max(s.updates), 0) from (
    select step, updates from agentrl.step where run = run_ and abandoned_by is null order by step desc limit 1) s
$$;

-- The number that lag is counted from, for a set of token versions.
create function agentrl.oldest_update_v1(run_ bigint, versions_ bigint[]) returns bigint language sql stable as $$
  select min(effective_update) from agentrl.policy_version where run = run_ and version = any (versions_)
$$;

-- Training trajectories that are opened and neither consumed nor dropped.
create function agentrl.outstanding_v1(run_ bigint) returns bigint language sql stable as $$
  select (select count(*) from agentrl.live where run = run_ and purpose = 'train')
       + (select count(*) from agentrl.grade_job where run = run_ and purpose = 'train')
       + (select count(*) from agentrl.graded where run = run_)
       + (select coalesce(sum(n_traj), 0) from agentrl.ready where run = run_)::bigint
       + (select coalesce(sum(n_traj), 0) from agentrl.lease where run = run_)::bigint
$$;

-- Records a move.
create function agentrl.note_v1(run_ bigint, trajectory_ uuid, from_ text, to_ text, fence_ bigint, actor_ text, why_ text)
returns void language sql as $$
  insert into agentrl.event (run, trajectory, from_place, to_place, fence, actor, why)
  values (run_, trajectory_, from_, to_, fence_, actor_, why_)
$$;

-- Puts a trajectory whose row was just deleted from another place into dropped.
create function agentrl.drop_v1(
  run_ bigint, start_version_ bigint, trajectory_ uuid, from_ text, reason_ text, detail_ text, charged_ boolean,
  retryable_ boolean, fence_ bigint, actor_ text) returns void language plpgsql as $$
begin
  insert into agentrl.dropped (run, trajectory, start_version, purpose, evaluation, grp, from_place, reason, detail, charged,
                               retryable)
  select run_, t.id, t.start_version, t.purpose, t.evaluation, t.grp, from_, reason_, detail_, charged_,
         retryable_ and (not charged_ or t.failures + 1 < r.max_attempts)
  from agentrl.trajectory t join agentrl.run r on r.id = t.run
  where t.run = run_ and t.start_version = start_version_ and t.id = trajectory_;
  perform agentrl.note_v1(run_, trajectory_, from_, 'dropped', fence_, actor_, concat_ws(': ', reason_, detail_));
end $$;

-- Drops every trajectory of an item whose row was just deleted from ready, lease or consumed.
create function agentrl.drop_item_v1(
  run_ bigint, trajectories_ uuid[], start_versions_ bigint[], from_ text, reason_ text, detail_ text, fence_ bigint,
  actor_ text) returns void language sql as $$
  select agentrl.drop_v1(run_, m.start_version, m.id, from_, reason_, detail_, false, false, fence_, actor_)
  from unnest(trajectories_, start_versions_) m (id, start_version)
$$;

-- Inserts an item into ready. The caller holds the run row: a grade that read the old branch can't land after a resume.
create function agentrl.to_ready_v1(
  run_ bigint, item_ uuid, trajectories_ uuid[], start_versions_ bigint[], attempts_ bigint, at_ timestamptz, from_ text,
  fence_ bigint, actor_ text, why_ text) returns void language plpgsql as $$
begin
  insert into agentrl.ready (run, item, trajectories, start_versions, n_traj, n_tokens, oldest_update, attempts, oldest_start, at)
  select run_, item_, trajectories_, start_versions_, cardinality(trajectories_), sum(t.n_tokens),
         min(agentrl.oldest_update_v1(run_, t.versions)), attempts_, min(t.started_at), at_
  from unnest(trajectories_, start_versions_) m (id, start_version)
  join agentrl.trajectory t on t.run = run_ and t.start_version = m.start_version and t.id = m.id;
  insert into agentrl.event (run, trajectory, from_place, to_place, fence, actor, why)
  select run_, id, from_, 'ready', fence_, actor_, why_ from unnest(trajectories_) id;
end $$;

-- Puts a leased item, whose row was just deleted, back into ready; a charged one may have used up its claims.
create function agentrl.return_lease_v1(r agentrl.run, l agentrl.lease, charge boolean, actor_ text, why_ text)
returns boolean language plpgsql as $$
declare
  attempts_ bigint := l.attempts + charge::int;
begin
  if attempts_ >= r.max_lease_attempts then
    perform agentrl.drop_item_v1(l.run, l.trajectories, l.start_versions, 'lease', 'max_attempts',
                                 format('%s claims ended without a commit', attempts_), l.fence, actor_);
    return false;
  end if;
  perform agentrl.to_ready_v1(l.run, l.item, l.trajectories, l.start_versions, attempts_, l.ready_at, 'lease', l.fence,
                              actor_, why_);
  return true;
end $$;

-- Re-evaluates a group after an end of one of its members. The caller holds the run row and the group row.
create function agentrl.settle_group_v1(run_ bigint, grp_ uuid, fence_ bigint, actor_ text) returns void language plpgsql as $$
declare
  g agentrl.grp;
  ids uuid[];
  starts bigint[];
  m record;
begin
  select * into g from agentrl.grp where id = grp_;
  if g.state <> 'open' then
    return;
  end if;
  select array_agg(t.id order by t.seat), array_agg(t.start_version order by t.seat) into ids, starts
  from agentrl.graded d
  join agentrl.trajectory t on t.run = d.run and t.start_version = d.start_version and t.id = d.trajectory
  where d.run = run_ and d.grp = grp_;
  if cardinality(ids) = g.size then
    delete from agentrl.graded where grp = grp_;
    update agentrl.grp set state = 'complete' where id = grp_;
    perform agentrl.to_ready_v1(run_, grp_, ids, starts, 0, clock_timestamp(), 'graded', fence_, actor_, 'group complete');
  elsif exists (select 1 from agentrl.dropped where grp = grp_ and not retryable) then
    update agentrl.grp set state = 'dropped' where id = grp_;
    update agentrl.dropped set retryable = false where grp = grp_ and retried_by is null;
    for m in
      with l as (delete from agentrl.live where grp = grp_ returning trajectory, start_version),
           j as (delete from agentrl.grade_job where grp = grp_ returning trajectory, start_version),
           d as (delete from agentrl.graded where grp = grp_ returning trajectory, start_version)
      select *, 'live' as place from l union all select *, 'grade_job' from j union all select *, 'graded' from d
    loop
      perform agentrl.drop_v1(run_, m.start_version, m.trajectory, m.place, 'group_incomplete',
                              'a seat of the group was lost', false, false, fence_, actor_);
    end loop;
  end if;
end $$;

-- Ends one seat without data: the trajectory is dropped, and its group, if any, re-evaluated. The caller has deleted the row
-- and holds the run row and the group row.
create function agentrl.end_seat_v1(
  run_ bigint, start_version_ bigint, trajectory_ uuid, grp_ uuid, from_ text, reason_ text, detail_ text, charged_ boolean,
  retryable_ boolean, fence_ bigint, actor_ text) returns void language plpgsql as $$
begin
  perform agentrl.drop_v1(run_, start_version_, trajectory_, from_, reason_, detail_, charged_, retryable_, fence_, actor_);
  if grp_ is not null then
    perform agentrl.settle_group_v1(run_, grp_, fence_, actor_);
  end if;
end $$;
comment on function agentrl.fail_v1 is 'Raises a typed error; the client maps the code (class AR) to its exception.';
comment on function agentrl.server_started_v1 is 'When the server started; leases of before are counted from there.';
comment on function agentrl.lapsed_v1 is 'Whether a lease has lapsed. A server that was down must not reap living workers: every lease lasts at least until one lease after the server''s start.';
comment on function agentrl.hold_run_v1 is 'Locks the run row for the length of the transaction so that no trainer can start meanwhile.';
comment on function agentrl.hold_trainer_v1 is 'Holds the run row and checks that the caller is its trainer.';
comment on function agentrl.head_v1 is 'Where the live history stands.';
comment on function agentrl.oldest_update_v1 is 'The number that lag is counted from, for a set of token versions.';
comment on function agentrl.outstanding_v1 is 'Training trajectories that are opened and neither consumed nor dropped.';
comment on function agentrl.note_v1 is 'Records a move.';
comment on function agentrl.drop_v1 is 'Puts a trajectory whose row was just deleted from another place into dropped.';
comment on function agentrl.drop_item_v1 is 'Drops every trajectory of an item whose row was just deleted from ready, lease or consumed.';
comment on function agentrl.to_ready_v1 is 'Inserts an item into ready. The caller holds the run row: a grade that read the old branch can''t land after a resume.';
comment on function agentrl.return_lease_v1 is 'Puts a leased item, whose row was just deleted, back into ready; a charged one may have used up its claims.';
comment on function agentrl.settle_group_v1 is 'Re-evaluates a group after an end of one of its members. The caller holds the run row and the group row.';
comment on function agentrl.end_seat_v1 is 'Ends one seat without data: the trajectory is dropped, and its group, if any, re-evaluated. The caller has deleted the row and holds the run row and the group row.';
-- 41_reap.sql
-- Collecting what has expired, inside open and claim: there is no maintenance process.

-- Episodes whose lease lapsed or that are too old lose their seat.
create function agentrl.reap_episodes_v1(r agentrl.run) returns void language plpgsql as $$
declare
  c record;
  old boolean;
begin
  for c in
    select l.trajectory, l.start_version, l.grp, l.worker, l.fence, l.purpose, agentrl.lapsed_v1(l.lease_until, l.lease) as lapsed
    from agentrl.live l
    join agentrl.trajectory t on t.run = l.run and t.start_version = l.start_version and t.id = l.trajectory
    where l.run = r.id
      and (agentrl.lapsed_v1(l.lease_until, l.lease) or (l.purpose = 'train' and t.started_at + r.max_age < now()))
    order by l.fence
  loop
    if c.grp is not null then
      perform 1 from agentrl.grp where id = c.grp for update;
    end if;
    -- A row that is locked is just being written: its worker lives.
    perform 1 from agentrl.live
    where trajectory = c.trajectory and fence = c.fence and (not c.lapsed or agentrl.lapsed_v1(lease_until, lease))
    for update skip locked;
    continue when not found;
    delete from agentrl.live where trajectory = c.trajectory;
    old := not c.lapsed;
    perform agentrl.end_seat_v1(
      r.id, c.start_version, c.trajectory, c.grp, 'live', case when old then 'too_old' else 'infrastructure' end,
      case when old then 'older than max_age' else format('worker %s let its lease lapse', c.worker) end,
      true, not old or c.grp is not null, c.fence, 'reaper');
  end loop;
end $$;

-- Ended episodes that are too old while they wait for a verdict or for their group; grade jobs of dead workers are free again.
create function agentrl.reap_waiting_v1(r agentrl.run) returns void language plpgsql as $$
declare
  c record;
begin
  update agentrl.grade_job set worker = null, fence = null, lease = null, lease_until = null
  where run = r.id and worker is not null and agentrl.lapsed_v1(lease_until, lease);
  for c in
    select w.* from (
      select trajectory, start_version, grp, 'grade_job' as place from agentrl.grade_job where run = r.id and purpose = 'train'
      union all select trajectory, start_version, grp, 'graded' from agentrl.graded where run = r.id) w
    join agentrl.trajectory t on t.run = r.id and t.start_version = w.start_version and t.id = w.trajectory
    where t.started_at + r.max_age < now()
    order by w.grp, w.trajectory
  loop
    if c.grp is not null then
      perform 1 from agentrl.grp where id = c.grp for update;
    end if;
    if c.place = 'graded' then
      delete from agentrl.graded where trajectory = c.trajectory;
    else
      delete from agentrl.grade_job where trajectory = c.trajectory;
    end if;
    continue when not found;
    perform agentrl.end_seat_v1(r.id, c.start_version, c.trajectory, c.grp, c.place, 'too_old', 'older than max_age', true,
                                c.grp is not null, null, 'reaper');
  end loop;
end $$;

-- Leases of a trainer that lives no more, and ready items out of range by version or by age.
create function agentrl.reap_items_v1(r agentrl.run) returns void language plpgsql as $$
declare
  l agentrl.lease;
  c agentrl.ready;
  updates_ bigint;
begin
  for l in
    delete from agentrl.lease where run = r.id and agentrl.lapsed_v1(lease_until, lease) returning *
  loop
    perform agentrl.return_lease_v1(r, l, true, 'reaper', 'the lease lapsed');
  end loop;
  select h.updates into updates_ from agentrl.head_v1(r.id) h;
  for c in
    delete from agentrl.ready
    where run = r.id and (updates_ - oldest_update > r.lag_bound or oldest_start + r.max_age < now())
    returning *
  loop
    if updates_ - c.oldest_update > r.lag_bound then
      perform agentrl.drop_item_v1(r.id, c.trajectories, c.start_versions, 'ready', 'stale',
        format('lag %s exceeds the bound %s', updates_ - c.oldest_update, r.lag_bound), null, 'reaper');
    else
      perform agentrl.drop_item_v1(r.id, c.trajectories, c.start_versions, 'ready', 'too_old', 'older than max_age', null,
                                   'reaper');
    end if;
  end loop;
end $$;

-- At most once a second, and only by whoever gets the admission lock at once: groups are then locked by nobody else in another
-- order. The caller holds the run row.
create function agentrl.reap_v1(r agentrl.run) returns void language plpgsql as $$
begin
  if not pg_try_advisory_xact_lock(hashtext('agentrl.admission'), r.id::int) then
    return;
  end if;
  update agentrl.reap set at = clock_timestamp() where run = r.id and at < clock_timestamp() - interval '1 second';
  if not found then
    return;
  end if;
  perform agentrl.reap_episodes_v1(r);
  perform agentrl.reap_waiting_v1(r);
  perform agentrl.reap_items_v1(r);
end $$;
comment on function agentrl.reap_episodes_v1 is 'Episodes whose lease lapsed or that are too old lose their seat.';
comment on function agentrl.reap_waiting_v1 is 'Ended episodes that are too old while they wait for a verdict or for their group; grade jobs of dead workers are free again.';
comment on function agentrl.reap_items_v1 is 'Leases of a trainer that lives no more, and ready items out of range by version or by age.';
comment on function agentrl.reap_v1 is 'At most once a second, and only by whoever gets the admission lock at once: groups are then locked by nobody else in another order. The caller holds the run row.';
-- 42_open.sql
-- Opening episodes: admission, the task cursor and idempotent requests.

-- Creates one episode: trajectory, live row and event.
create function agentrl.start_episode_v1(
  r agentrl.run, purpose_ text, evaluation_ bigint, start_version_ bigint, split_ text, idx_ bigint, cursor_ bigint, grp_ uuid,
  seat_ bigint, attempt_ bigint, failures_ bigint, retry_of_ uuid, seed_key text, worker_ text, lineage jsonb)
returns uuid language plpgsql as $$
declare
  id_ uuid := gen_random_uuid();
  fence_ bigint := nextval('agentrl.fence');
begin
  insert into agentrl.trajectory (
    run, start_version, id, purpose, evaluation, split, task_idx, task_id, cursor, grp, seat, attempt, failures, retry_of, seed,
    worker, fence, model, tokenizer_hash, template_hash, engine, engine_version, engine_dtype, sampling, logprob_kind,
    environment, environment_version, sandbox, origin)
  select r.id, start_version_, id_, purpose_, evaluation_, split_, idx_, k.task_id, cursor_, grp_, seat_, attempt_, failures_,
         retry_of_, ('x' || left(md5(format('%s:%s:%s:%s', r.seed, seed_key, seat_, attempt_)), 15))::bit(60)::bigint, worker_,
         fence_, lineage ->> 'model', lineage ->> 'tokenizer_hash', lineage ->> 'template_hash', lineage ->> 'engine',
         lineage ->> 'engine_version', lineage ->> 'engine_dtype', lineage -> 'sampling', lineage ->> 'logprob_kind',
         lineage ->> 'environment', lineage ->> 'environment_version', lineage ->> 'sandbox', lineage ->> 'origin'
  from agentrl.task k where k.run = r.id and k.split = split_ and k.idx = idx_;
  insert into agentrl.live (trajectory, run, start_version, purpose, grp, worker, fence, lease, lease_until)
  values (id_, r.id, start_version_, purpose_, grp_, worker_, fence_, r.lease, clock_timestamp() + r.lease);
  perform agentrl.note_v1(r.id, id_, null, 'live', fence_, worker_,
                          case when retry_of_ is null then 'opened' else format('retry of %s', retry_of_) end);
  return id_;
end $$;

-- Serves up to n pending retries: of an evaluation, or of training when evaluation_ is NULL.
create function agentrl.serve_retries_v1(
  r agentrl.run, evaluation_ bigint, n_ bigint, start_version_ bigint, worker_ text, lineage jsonb)
returns uuid[] language plpgsql as $$
declare
  d record;
  id_ uuid;
  opened uuid[] := '{}';
begin
  for d in
    select x.trajectory, x.charged, t.* from agentrl.dropped x
    join agentrl.trajectory t on t.run = x.run and t.start_version = x.start_version and t.id = x.trajectory
    where x.run = r.id and x.retryable and x.retried_by is null and x.evaluation is not distinct from evaluation_
    order by x.at, x.trajectory limit n_
  loop
    if d.grp is not null then
      perform 1 from agentrl.grp where id = d.grp for update;
    end if;
    perform 1 from agentrl.dropped
    where run = r.id and trajectory = d.trajectory and retryable and retried_by is null for update;
    continue when not found;
    id_ := agentrl.start_episode_v1(
      r, d.purpose, evaluation_, start_version_, d.split, d.task_idx, d.cursor, d.grp, d.seat, d.attempt + 1,
      d.failures + d.charged::int, d.trajectory, case when evaluation_ is null then d.cursor::text
      else format('%s:%s', d.split, start_version_) end, worker_, lineage);
    update agentrl.dropped set retried_by = id_ where run = r.id and trajectory = d.trajectory;
    opened := opened || id_;
  end loop;
  return opened;
end $$;

-- Serves up to n seats of a group that were never opened.
create function agentrl.serve_seats_v1(
  r agentrl.run, grp_ uuid, n_ bigint, start_version_ bigint, worker_ text, lineage jsonb) returns uuid[] language plpgsql as $$
declare
  g agentrl.grp;
  opened uuid[] := '{}';
begin
  select * into g from agentrl.grp where id = grp_ and state = 'open' for update;
  while found and cardinality(opened) < n_ and g.next_seat < g.size loop
    opened := opened || agentrl.start_episode_v1(
      r, 'train', null, start_version_, g.split, g.task_idx, g.cursor, g.id, g.next_seat, 1, 0, null, g.cursor::text, worker_,
      lineage);
    update agentrl.grp set next_seat = next_seat + 1 where id = grp_ returning * into g;
  end loop;
  return opened;
end $$;

-- Takes the next new task; a group gets its row and as many seats as n allows.
create function agentrl.serve_task_v1(r agentrl.run, n_ bigint, start_version_ bigint, worker_ text, lineage jsonb)
returns uuid[] language plpgsql as $$
declare
  c agentrl.task_cursor;
  grp_ uuid;
begin
  update agentrl.task_cursor set next = next + 1 where run = r.id and split = 'train' returning * into c;
  c.next := c.next - 1;
  if r.group_size = 1 then
    return array[agentrl.start_episode_v1(r, 'train', null, start_version_, 'train', c.next % c.n, c.next, null, 0, 1, 0, null,
                                          c.next::text, worker_, lineage)];
  end if;
  insert into agentrl.grp (id, run, split, task_idx, cursor, size)
  values (gen_random_uuid(), r.id, 'train', c.next % c.n, c.next, r.group_size) returning id into grp_;
  return agentrl.serve_seats_v1(r, grp_, n_, start_version_, worker_, lineage);
end $$;

-- How many more training episodes may open: by lag, and by the target. Counts what the asking engine's weights are behind.
create function agentrl.room_v1(r agentrl.run, engine_version_ bigint, out by_lag bigint, out by_target bigint)
language plpgsql as $$
declare
  h record;
  engine_update bigint;
  outstanding bigint := agentrl.outstanding_v1(r.id);
begin
  select * into h from agentrl.head_v1(r.id);
  select effective_update into engine_update from agentrl.policy_version where run = r.id and version = engine_version_;
  if not found then
    perform agentrl.fail_v1('AR005', format('the engine reports version %s, which run "%s" does not know', engine_version_, r.name));
  end if;
  if r.lag_bound is null then
    by_lag := r.max_running - (select count(*) from agentrl.live where run = r.id and purpose = 'train');
  else
    by_lag := (r.lag_bound + 1) * r.batch_max - outstanding - r.batch_max * (h.updates - engine_update);
  end if;
  by_target := (r.target_steps - h.step) * r.batch_max - outstanding;
end $$;

-- The same request made earlier, or NULL.
create function agentrl.earlier_request_v1(request_ uuid, run_ bigint, worker_ text) returns agentrl.open_request
language plpgsql as $$
declare
  q agentrl.open_request;
begin
  select * into q from agentrl.open_request where request = request_;
  if found and (q.worker, q.run) is distinct from (worker_, run_) then
    perform agentrl.fail_v1('AR009', format('request %s was made by worker %s of run %s before', request_, q.worker, q.run));
  end if;
  return q;
end $$;

-- Opens up to n training episodes within capacity, or says why none: retries, missing seats of open groups, new tasks.
create function agentrl.open_v1(
  run_ bigint, worker_ text, request_ uuid, n_ bigint, engine_version_ bigint, lineage_ text,
  out refusal text, out start_version bigint, out opened uuid[]) language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_run_v1(run_);
  lineage constant jsonb := lineage_::jsonb;
  earlier agentrl.open_request;
  room record;
  left_ bigint;
  g uuid;
begin
  perform pg_advisory_xact_lock(hashtext('agentrl.admission'), run_::int);
  earlier := agentrl.earlier_request_v1(request_, run_, worker_);
  start_version := earlier.start_version;
  opened := coalesce(earlier.trajectories, '{}');
  if earlier.request is not null then
    return;
  end if;
  perform agentrl.reap_v1(r);
  if r.status <> 'running' then
    refusal := 'run_not_running';
    return;
  end if;
  select max(version) into start_version from agentrl.policy_version where run = run_ and status = 'published';
  if start_version is null then
    refusal := 'no_version';
    return;
  end if;
  select * into room from agentrl.room_v1(r, engine_version_);
  left_ := least(n_, room.by_lag, room.by_target);
  opened := agentrl.serve_retries_v1(r, null, greatest(left_, 0), start_version, worker_, lineage);
  for g in select id from agentrl.grp where run = run_ and state = 'open' and next_seat < size order by created_at, id loop
    exit when cardinality(opened) >= left_;
    opened := opened || agentrl.serve_seats_v1(r, g, left_ - cardinality(opened), start_version, worker_, lineage);
  end loop;
  if exists (select 1 from agentrl.task_cursor where run = run_ and split = 'train' and n > 0) then
    while cardinality(opened) < left_
      and (r.group_size = 1 or least(room.by_lag, room.by_target) - cardinality(opened) >= r.group_size) loop
      opened := opened || agentrl.serve_task_v1(r, left_ - cardinality(opened), start_version, worker_, lineage);
    end loop;
  elsif opened = '{}' then
    refusal := 'no_tasks';
  end if;
  if opened <> '{}' then
    insert into agentrl.open_request (request, run, worker, start_version, trajectories)
    values (request_, run_, worker_, start_version, opened);
  elsif refusal is null then
    refusal := case when room.by_target < r.group_size then 'target_reached' else 'no_capacity' end;
  end if;
end $$;

-- Marks evaluations finished whose every task is scored or given up. Both counts only grow, so no lock is needed.
create function agentrl.settle_evaluations_v1(run_ bigint) returns void language sql as $$
  update agentrl.evaluation e set finished_at = clock_timestamp()
  where e.run = run_ and e.finished_at is null
    and (select count(*) from agentrl.evaluated where evaluation = e.id)
      + (select count(*) from agentrl.dropped where evaluation = e.id and not retryable) >= e.n
$$;

-- Opens up to n episodes of an evaluation, outside admission: retries, then tasks never opened.
create function agentrl.open_evaluation_v1(
  evaluation_ bigint, worker_ text, request_ uuid, n_ bigint, lineage_ text,
  out refusal text, out run bigint, out start_version bigint, out opened uuid[]) language plpgsql as $$
declare
  e agentrl.evaluation;
  r agentrl.run;
  lineage constant jsonb := lineage_::jsonb;
  earlier agentrl.open_request;
begin
  select * into e from agentrl.evaluation where id = evaluation_;
  if not found then
    perform agentrl.fail_v1('AR009', format('there is no evaluation with id %s', evaluation_));
  end if;
  r := agentrl.hold_run_v1(e.run);
  perform pg_advisory_xact_lock(hashtext('agentrl.admission'), e.run::int);
  earlier := agentrl.earlier_request_v1(request_, e.run, worker_);
  run := e.run;
  start_version := e.version;
  opened := earlier.trajectories;
  if earlier.request is not null then
    return;
  end if;
  perform agentrl.reap_v1(r);
  select * into e from agentrl.evaluation where id = evaluation_ for update;
  opened := agentrl.serve_retries_v1(r, e.id, n_, e.version, worker_, lineage);
  while cardinality(opened) < n_ and e.next_idx < e.n loop
    opened := opened || agentrl.start_episode_v1(
      r, 'eval', e.id, e.version, e.split, e.next_idx, e.next_idx, null, e.next_idx, 1, 0, null,
      format('%s:%s', e.split, e.version), worker_, lineage);
    update agentrl.evaluation set next_idx = next_idx + 1 where id = evaluation_ returning * into e;
  end loop;
  if opened <> '{}' then
    insert into agentrl.open_request (request, run, worker, start_version, trajectories)
    values (request_, e.run, worker_, e.version, opened);
  else
    refusal := 'no_tasks';
  end if;
end $$;

-- The episodes of a request as their worker needs them, in the order of the request.
create function agentrl.opened_v1(run_ bigint, start_version_ bigint, ids uuid[]) returns table (
  trajectory uuid, fence bigint, split text, task_id text, payload json, task_index bigint, seed bigint, start_version bigint,
  purpose text, grp uuid, seat bigint, attempt bigint) language sql stable as $$
  select t.id, t.fence, t.split, t.task_id, k.payload, t.task_idx, t.seed, t.start_version, t.purpose, t.grp, t.seat, t.attempt
  from unnest(ids) with ordinality o (id, n)
  join agentrl.trajectory t on t.run = run_ and t.start_version = start_version_ and t.id = o.id
  join agentrl.task k on k.run = run_ and k.split = t.split and k.idx = t.task_idx
  order by o.n
$$;
comment on function agentrl.start_episode_v1 is 'Creates one episode: trajectory, live row and event.';
comment on function agentrl.serve_retries_v1 is 'Serves up to n pending retries: of an evaluation, or of training when evaluation_ is NULL.';
comment on function agentrl.serve_seats_v1 is 'Serves up to n seats of a group that were never opened.';
comment on function agentrl.serve_task_v1 is 'Takes the next new task; a group gets its row and as many seats as n allows.';
comment on function agentrl.room_v1 is 'How many more training episodes may open: by lag, and by the target. Counts what the asking engine''s weights are behind.';
comment on function agentrl.earlier_request_v1 is 'The same request made earlier, or NULL.';
comment on function agentrl.open_v1 is 'Opens up to n training episodes within capacity, or says why none: retries, missing seats of open groups, new tasks.';
comment on function agentrl.settle_evaluations_v1 is 'Marks evaluations finished whose every task is scored or given up. Both counts only grow, so no lock is needed.';
comment on function agentrl.open_evaluation_v1 is 'Opens up to n episodes of an evaluation, outside admission: retries, then tasks never opened.';
comment on function agentrl.opened_v1 is 'The episodes of a request as their worker needs them, in the order of the request.';
-- 43_write.sql
-- Writing a running episode: fenced, idempotent, gap-free.

-- The answer to a segment that is not the next one: stored before (false), or an error of its own for each other case.
create function agentrl.answer_segment_v1(trajectory_ uuid, fence_ bigint, seg_ bigint, hash_ bytea) returns boolean
language plpgsql as $$
declare
  l agentrl.live;
  known bytea;
begin
  select * into l from agentrl.live where trajectory = trajectory_ and fence = fence_ for no key update;
  if not found then
    perform agentrl.fail_v1('AR001', format('trajectory %s is no longer open under fence %s: stop this episode', trajectory_, fence_));
  end if;
  if seg_ > l.next_seg then
    perform agentrl.fail_v1('AR002', format('segment %s of trajectory %s arrived, but segment %s is missing: send from there',
                                            seg_, trajectory_, l.next_seg), l.next_seg);
  end if;
  select body_hash into known from agentrl.segment
  where run = l.run and start_version = l.start_version and trajectory = trajectory_ and seg = seg_;
  if known is distinct from hash_ then
    perform agentrl.fail_v1('AR003', format('segment %s of trajectory %s is stored with another body', seg_, trajectory_));
  end if;
  update agentrl.live set lease_until = clock_timestamp() + lease where trajectory = trajectory_;
  return false;
end $$;

-- The distinct versions in a buffer of one version per token, ascending.
create function agentrl.distinct_versions_v1(token_versions_ bytea) returns bigint[] language sql immutable strict as $$
  select array_agg(distinct v::bigint order by v::bigint) from unnest(agentrl.i4(token_versions_)) v
$$;

-- The union of two sets of versions, ascending.
create function agentrl.merge_v1(a bigint[], b bigint[]) returns bigint[] language sql immutable strict as $$
  select array_agg(distinct v order by v) from unnest(a || b) v
$$;

-- Stores one turn and renews the lease. True: stored now; false: the same body was stored before.
create function agentrl.write_segment_v1(
  trajectory_ uuid, fence_ bigint, seg_ bigint, hash_ bytea, context_ bigint, version_ bigint, token_versions_ bytea,
  n_obs_ bigint, n_act_ bigint, ids_ bytea, logprobs_ bytea, loss_mask_ bytea, finish_reason_ text, observation_text_ text,
  action_text_ text, action_raw_ bytea, tool_calls_ text, tool_results_ text, tool_raw_ bytea[], exact_ bytea, reward_ float8,
  queue_s_ float8, generate_s_ float8, tool_s_ float8) returns boolean language plpgsql as $$
declare
  l record;
  versions_ bigint[] := case when token_versions_ is not null then agentrl.distinct_versions_v1(token_versions_)
                             when version_ is not null then array[version_] else '{}' end;
begin
  update agentrl.live
  set lease_until = clock_timestamp() + lease, next_seg = greatest(next_seg, seg_ + 1), n_tokens = n_tokens + n_obs_ + n_act_,
      n_actions = n_actions + n_act_,
      versions = case when versions @> versions_ then versions else agentrl.merge_v1(versions, versions_) end
  where trajectory = trajectory_ and fence = fence_ and next_seg = seg_ returning run, start_version into l;
  if not found then
    return agentrl.answer_segment_v1(trajectory_, fence_, seg_, hash_);
  end if;
  if (select count(*) from agentrl.policy_version where run = l.run and version = any (versions_)) <> cardinality(versions_) then
    perform agentrl.fail_v1('AR005', format('segment %s of trajectory %s carries policy versions %s, of which some have no row',
                                            seg_, trajectory_, versions_));
  end if;
  insert into agentrl.segment (
    run, start_version, trajectory, seg, context, versions, token_versions, n_obs, n_act, ids, logprobs, loss_mask,
    finish_reason, observation_text, action_text, action_raw, tool_calls, tool_results, tool_raw, exact, reward, queue_s,
    generate_s, tool_s, body_hash)
  values (
    l.run, l.start_version, trajectory_, seg_, context_, versions_, token_versions_, n_obs_, n_act_, ids_, logprobs_, loss_mask_,
    finish_reason_, observation_text_, action_text_, action_raw_, tool_calls_::json, tool_results_::json, tool_raw_, exact_,
    reward_, queue_s_, generate_s_, tool_s_, hash_);
  return true;
end $$;

-- Renews live rows; returns those that are still the caller's. A row that is locked is just being written, which renews it, so
-- it is not waited for.
create function agentrl.renew_v1(worker_ text, trajectories_ uuid[], fences_ bigint[]) returns setof uuid language sql as $$
  with mine as (
    select l.trajectory from agentrl.live l join unnest(trajectories_, fences_) m (id, fence)
      on l.trajectory = m.id and l.fence = m.fence and l.worker = worker_
    for no key update of l skip locked)
  update agentrl.live l set lease_until = clock_timestamp() + l.lease from mine where l.trajectory = mine.trajectory;
  select l.trajectory from agentrl.live l join unnest(trajectories_, fences_) m (id, fence)
    on l.trajectory = m.id and l.fence = m.fence and l.worker = worker_
$$;

-- The answer to a completion whose live row is gone: the first result when it is a repetition, else fenced.
create function agentrl.completed_before_v1(
  trajectory_ uuid, fence_ bigint, n_segments_ bigint, termination_ text, outcome_ text) returns text language plpgsql as $$
declare
  t agentrl.trajectory;
begin
  select * into t from agentrl.trajectory where id = trajectory_ and fence = fence_ and ended_to is not null;
  if not found then
    perform agentrl.fail_v1('AR001', format('trajectory %s is no longer open under fence %s: stop this episode', trajectory_, fence_));
  end if;
  if (t.termination, t.outcome) is distinct from (termination_, outcome_)
     or (t.complete and t.n_segments is distinct from n_segments_) then
    perform agentrl.fail_v1('AR007', format('trajectory %s was completed before as %s/%s with %s segments', trajectory_,
                                            t.termination, t.outcome, t.n_segments));
  end if;
  return t.ended_to;
end $$;

-- Where an ended episode goes. The caller holds its group row.
create function agentrl.place_of_end_v1(l agentrl.live, outcome_ text, has_reward boolean) returns text language sql stable as $$
  select case when outcome_ = 'infrastructure' or (l.n_actions = 0 and l.purpose = 'train') then 'dropped'
              when outcome_ = 'graded' and not has_reward then 'grade_job'
              when l.purpose = 'eval' then 'evaluated'
              when l.grp is null then 'ready'
              when (select count(*) from agentrl.graded where run = l.run and grp = l.grp) + 1
                = (select size from agentrl.grp where id = l.grp) then 'ready'
              else 'graded' end
$$;

-- Moves a just ended episode on. It passes grade_job and graded as events only: no other transaction could see the rows.
create function agentrl.hand_over_v1(l agentrl.live, t agentrl.trajectory) returns void language plpgsql as $$
declare
  graded_ constant boolean := t.outcome = 'graded';
  why_ constant text := case when graded_ then 'graded in the episode' else 'ended by the policy' end;
  before constant text := case when graded_ then 'grade_job' else 'live' end;
  after_ constant text := case when l.purpose = 'eval' then 'evaluated' else 'graded' end;
begin
  insert into agentrl.event (run, trajectory, from_place, to_place, fence, actor, why)
  select l.run, l.trajectory, e.from_place, e.to_place, l.fence, l.worker, e.why
  from (values ('live', 'grade_job', 'completed', graded_), (before, after_, why_, t.ended_to <> 'grade_job'),
               ('graded', 'ready', 'no group to wait for', t.ended_to = 'ready' and l.grp is null)
       ) e (from_place, to_place, why, happened) where happened;
  if t.ended_to = 'grade_job' then
    insert into agentrl.grade_job (trajectory, run, start_version, purpose, grp)
    values (l.trajectory, l.run, l.start_version, l.purpose, l.grp);
  elsif t.ended_to = 'evaluated' then
    insert into agentrl.evaluated (run, trajectory, start_version, evaluation)
    values (l.run, l.trajectory, l.start_version, t.evaluation);
  elsif l.grp is null then
    insert into agentrl.ready (run, item, trajectories, start_versions, n_traj, n_tokens, oldest_update, oldest_start)
    values (l.run, l.trajectory, array[l.trajectory], array[l.start_version], 1, l.n_tokens,
            agentrl.oldest_update_v1(l.run, l.versions), t.started_at);
  else
    insert into agentrl.graded (trajectory, run, start_version, grp) values (l.trajectory, l.run, l.start_version, l.grp);
    perform agentrl.settle_group_v1(l.run, l.grp, l.fence, l.worker);
  end if;
end $$;

-- Ends an episode: checks that all announced segments are there, writes the end and moves it.
create function agentrl.complete_v1(
  trajectory_ uuid, fence_ bigint, n_segments_ bigint, termination_ text, outcome_ text, error_ text, retryable_ boolean,
  reward_ float8, success_ boolean, grader_ text, grader_version_ text, detail_ text, duration_s_ float8)
returns text language plpgsql as $$
declare
  l agentrl.live;
  t agentrl.trajectory;
begin
  select * into l from agentrl.live where trajectory = trajectory_ and fence = fence_;
  if found then
    perform 1 from agentrl.run where id = l.run for share;
    if l.grp is not null then
      perform 1 from agentrl.grp where id = l.grp for update;
    end if;
    delete from agentrl.live where trajectory = trajectory_ and fence = fence_ returning * into l;
  end if;
  if not found then
    return agentrl.completed_before_v1(trajectory_, fence_, n_segments_, termination_, outcome_);
  end if;
  if outcome_ <> 'infrastructure' and l.next_seg <> n_segments_ then
    perform agentrl.fail_v1('AR004', format('trajectory %s announced %s segments, but %s are stored: send from segment %s',
                                            trajectory_, n_segments_, l.next_seg, l.next_seg), l.next_seg);
  end if;
  update agentrl.trajectory
  set ended_at = clock_timestamp(), complete = (l.next_seg = n_segments_), termination = termination_, outcome = outcome_,
      ended_to = agentrl.place_of_end_v1(l, outcome_, reward_ is not null), error = error_, n_segments = l.next_seg,
      n_tokens = l.n_tokens, n_actions = l.n_actions, versions = l.versions
  where run = l.run and start_version = l.start_version and id = trajectory_ returning * into t;
  if reward_ is not null then
    insert into agentrl.reward (run, trajectory, grader, grader_version, value, success, detail, duration_s)
    values (l.run, trajectory_, grader_, grader_version_, reward_, success_, detail_::json, duration_s_);
  end if;
  if outcome_ = 'infrastructure' then
    perform agentrl.end_seat_v1(
      l.run, l.start_version, trajectory_, l.grp, 'live', case when termination_ = 'aborted' then 'cancelled' else 'infrastructure' end,
      error_, termination_ <> 'aborted', retryable_, l.fence, l.worker);
  elsif t.ended_to = 'dropped' then
    perform agentrl.end_seat_v1(l.run, l.start_version, trajectory_, l.grp, 'live', 'zero_action', 'no action token was sampled',
                                true, l.grp is not null, l.fence, l.worker);
  else
    perform agentrl.hand_over_v1(l, t);
  end if;
  return t.ended_to;
end $$;
comment on function agentrl.answer_segment_v1 is 'The answer to a segment that is not the next one: stored before (false), or an error of its own for each other case.';
comment on function agentrl.distinct_versions_v1 is 'The distinct versions in a buffer of one version per token, ascending.';
comment on function agentrl.merge_v1 is 'The union of two sets of versions, ascending.';
comment on function agentrl.write_segment_v1 is 'Stores one turn and renews the lease. True: stored now; false: the same body was stored before.';
comment on function agentrl.renew_v1 is 'Renews live rows; returns those that are still the caller''s. A row that is locked is just being written, which renews it, so it is not waited for.';
comment on function agentrl.completed_before_v1 is 'The answer to a completion whose live row is gone: the first result when it is a repetition, else fenced.';
comment on function agentrl.place_of_end_v1 is 'Where an ended episode goes. The caller holds its group row.';
comment on function agentrl.hand_over_v1 is 'Moves a just ended episode on. It passes grade_job and graded as events only: no other transaction could see the rows.';
comment on function agentrl.complete_v1 is 'Ends an episode: checks that all announced segments are there, writes the end and moves it.';
-- 44_versions.sql
-- Naming weights. All checks of the fence hold the run row, so no trainer can start between the check and the write.

-- Gives weights the next name. The same uri on the same branch gives the same version, unless that name was burnt.
create function agentrl.stage_version_v1(
  run_ bigint, fence_ bigint, parent_ bigint, updates_ bigint, uri_ text, checksum_ text) returns agentrl.policy_version
language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_trainer_v1(run_, fence_);
  v agentrl.policy_version;
begin
  perform pg_advisory_xact_lock(hashtext('agentrl.version'), run_::int);
  select * into v from agentrl.policy_version
  where run = run_ and branch = r.branch and uri = uri_ and status <> 'failed' and fence = fence_;
  if found then
    if (v.parent, v.updates, v.checksum) is distinct from (parent_, updates_, checksum_) then
      perform agentrl.fail_v1('AR007', format('the weights at %s are version %s already, with other content', uri_, v.version));
    end if;
    return v;
  end if;
  if parent_ is not null and not exists (select 1 from agentrl.policy_version where run = run_ and version = parent_) then
    perform agentrl.fail_v1('AR005', format('parent version %s has no row in run "%s"', parent_, r.name));
  end if;
  if updates_ > (select updates from agentrl.head_v1(run_)) then
    perform agentrl.fail_v1('AR007', format('weights with %s updates can''t be staged: the ledger of run "%s" knows fewer',
                                            updates_, r.name));
  end if;
  select coalesce(max(version) + 1, 0) into v.version from agentrl.policy_version where run = run_;
  perform agentrl.ensure_partitions_v1(run_, v.version);
  insert into agentrl.policy_version (run, version, parent, updates, effective_update, uri, checksum, status, branch, fence)
  values (run_, v.version, parent_, updates_, updates_, uri_, checksum_, 'staged', r.branch, fence_) returning * into v;
  return v;
end $$;

-- Marks a staged version published or failed; repeating it changes nothing.
create function agentrl.settle_version_v1(run_ bigint, fence_ bigint, version_ bigint, status_ text) returns void
language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_trainer_v1(run_, fence_);
  v agentrl.policy_version;
begin
  select * into v from agentrl.policy_version where run = run_ and version = version_ for update;
  if not found then
    perform agentrl.fail_v1('AR005', format('version %s has no row in run "%s"', version_, r.name));
  elsif v.status = status_ then
    return;
  elsif v.status <> 'staged' then
    perform agentrl.fail_v1('AR007', format('version %s of run "%s" is %s and can''t become %s', version_, r.name, v.status, status_));
  elsif status_ = 'published' then
    update agentrl.policy_version set status = 'published', published_at = clock_timestamp() where run = run_ and version = version_;
  else
    update agentrl.policy_version set status = 'failed', failed_at = clock_timestamp() where run = run_ and version = version_;
  end if;
end $$;

-- Records that an engine loaded a version; repeating the newest load changes nothing.
create function agentrl.record_load_v1(run_ bigint, engine_ text, version_ bigint) returns void language plpgsql as $$
begin
  if not exists (select 1 from agentrl.policy_version where run = run_ and version = version_) then
    perform agentrl.fail_v1('AR005', format('engine %s loaded version %s, which has no row in run %s', engine_, version_, run_));
  end if;
  insert into agentrl.engine_version (run, engine, version)
  select run_, engine_, version_
  where version_ is distinct from
    (select version from agentrl.engine_version where run = run_ and engine = engine_ order by id desc limit 1);
end $$;

-- Commits a checkpoint whose file is written; the same uri again gives the first row.
create function agentrl.add_checkpoint_v1(
  run_ bigint, fence_ bigint, step_ bigint, updates_ bigint, version_ bigint, uri_ text, checksum_ text)
returns agentrl.checkpoint language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_trainer_v1(run_, fence_);
  h record;
  c agentrl.checkpoint;
begin
  select * into h from agentrl.head_v1(run_);
  select * into c from agentrl.checkpoint where run = run_ and uri = uri_;
  if found then
    if (c.step, c.updates, c.version, c.checksum) is distinct from (step_, updates_, version_, checksum_) then
      perform agentrl.fail_v1('AR007', format('checkpoint %s is committed already, with other content', uri_));
    end if;
    return c;
  end if;
  if (step_, updates_) is distinct from (h.step, h.updates) then
    perform agentrl.fail_v1('AR007', format('a checkpoint of step %s with %s updates does not fit run "%s", which is at step %s with %s',
                                            step_, updates_, r.name, h.step, h.updates));
  end if;
  if not exists (select 1 from agentrl.policy_version where run = run_ and version = version_) then
    perform agentrl.fail_v1('AR005', format('version %s has no row in run "%s"', version_, r.name));
  end if;
  insert into agentrl.checkpoint (run, branch, step, updates, version, uri, checksum, fence)
  values (run_, r.branch, step_, updates_, version_, uri_, checksum_, fence_) returning * into c;
  return c;
end $$;

-- Asks for a score of a published version; the same request gives the same evaluation.
create function agentrl.request_evaluation_v1(run_ bigint, version_ bigint, step_ bigint, split_ text, n_ bigint) returns bigint
language plpgsql as $$
declare
  v agentrl.policy_version;
  tasks bigint;
  id_ bigint;
begin
  select * into v from agentrl.policy_version where run = run_ and version = version_;
  if not found then
    perform agentrl.fail_v1('AR005', format('version %s has no row in run %s', version_, run_));
  elsif v.status <> 'published' then
    perform agentrl.fail_v1('AR007', format('version %s of run %s is %s: only a published version can be evaluated', version_, run_, v.status));
  end if;
  select n into tasks from agentrl.task_cursor where run = run_ and split = split_;
  if tasks is null or tasks < n_ then
    perform agentrl.fail_v1('AR009', format('split "%s" of run %s has %s tasks, %s were asked for', split_, run_, coalesce(tasks, 0), n_));
  end if;
  insert into agentrl.evaluation (run, version, updates, step, split, n) values (run_, version_, v.updates, step_, split_, n_)
  on conflict (run, version, split) do nothing;
  select id into id_ from agentrl.evaluation where run = run_ and version = version_ and split = split_;
  return id_;
end $$;
comment on function agentrl.stage_version_v1 is 'Gives weights the next name. The same uri on the same branch gives the same version, unless that name was burnt.';
comment on function agentrl.settle_version_v1 is 'Marks a staged version published or failed; repeating it changes nothing.';
comment on function agentrl.record_load_v1 is 'Records that an engine loaded a version; repeating the newest load changes nothing.';
comment on function agentrl.add_checkpoint_v1 is 'Commits a checkpoint whose file is written; the same uri again gives the first row.';
comment on function agentrl.request_evaluation_v1 is 'Asks for a score of a published version; the same request gives the same evaluation.';
-- 45_trainer.sql
-- Starting, renewing and releasing the one trainer of a run.

-- Recomputes what lag counts from: the versions on the parent chain of `head_` count their own updates, the others twice those of
-- their last ancestor on that chain minus their own. The memo for ready items is rebuilt by the caller.
create function agentrl.recompute_lag_v1(run_ bigint, head_ bigint) returns void language sql as $$
  with recursive chain as (
    select version, parent, updates from agentrl.policy_version where run = run_ and version = head_
    union all
    select p.version, p.parent, p.updates from agentrl.policy_version p join chain c on p.run = run_ and p.version = c.parent
  ), meet (version, common) as (
    select version, updates from chain
    union all
    select p.version, m.common from agentrl.policy_version p join meet m on p.run = run_ and p.parent = m.version
    where p.version not in (select version from chain)
  )
  update agentrl.policy_version v set effective_update = 2 * coalesce(m.common, 0) - v.updates
  from agentrl.policy_version p left join meet m on m.version = p.version
  where p.run = run_ and v.run = run_ and v.version = p.version
$$;

-- Marks the steps after `keep` with their ledger and checkpoints as abandoned; their items come back to ready.
create function agentrl.abandon_v1(r agentrl.run, keep bigint, actor_ text) returns uuid[] language plpgsql as $$
declare
  c record;
  items uuid[] := '{}';
begin
  update agentrl.step set abandoned_by = r.branch where run = r.id and abandoned_by is null and step > keep;
  update agentrl.checkpoint set abandoned_by = r.branch where run = r.id and abandoned_by is null and step > keep;
  for c in
    with gone as (
      update agentrl.consumed set abandoned_by = r.branch
      where run = r.id and abandoned_by is null and step > keep returning item, step, trajectory, start_version)
    select g.item, array_agg(g.trajectory order by t.seat) as trajectories, array_agg(g.start_version order by t.seat) as starts
    from gone g join agentrl.trajectory t on t.run = r.id and t.start_version = g.start_version and t.id = g.trajectory
    group by g.item order by min(g.step), min(t.fence)
  loop
    perform agentrl.to_ready_v1(r.id, c.item, c.trajectories, c.starts, 0, clock_timestamp(), 'consumed', r.trainer_fence, actor_,
                                format('its step was abandoned by branch %s', r.branch));
    items := items || c.item;
  end loop;
  return items;
end $$;

-- Rebuilds oldest_update of everything in ready and drops what the new branch can't use any more.
create function agentrl.refresh_ready_v1(r agentrl.run, actor_ text) returns bigint language plpgsql as $$
declare
  updates_ bigint;
  c agentrl.ready;
  n bigint := 0;
begin
  update agentrl.ready q set oldest_update = (
    select min(agentrl.oldest_update_v1(r.id, t.versions)) from unnest(q.trajectories, q.start_versions) m (id, start_version)
    join agentrl.trajectory t on t.run = r.id and t.start_version = m.start_version and t.id = m.id)
  where run = r.id;
  select updates into updates_ from agentrl.head_v1(r.id);
  for c in delete from agentrl.ready where run = r.id and updates_ - oldest_update > r.lag_bound returning * loop
    perform agentrl.drop_item_v1(r.id, c.trajectories, c.start_versions, 'ready', 'abandoned_branch',
      format('lag %s on branch %s exceeds the bound %s', updates_ - c.oldest_update, r.branch, r.lag_bound), r.trainer_fence, actor_);
    n := n + 1;
  end loop;
  return n;
end $$;

-- Takes the trainer fence and, with earlier history, opens a branch at a checkpoint or at the root, all in one transaction.
create function agentrl.start_trainer_v1(
  run_ bigint, owner_ text, lease_s double precision, checkpoint_ bigint,
  out fence bigint, out branch bigint, out step bigint, out updates bigint, out version bigint, out returned bigint,
  out dropped bigint) language plpgsql as $$
declare
  r agentrl.run;
  c agentrl.checkpoint;
  base agentrl.policy_version;
  l agentrl.lease;
  died boolean;
  items uuid[];
begin
  select * into r from agentrl.run where id = run_ for update;
  if not found then
    perform agentrl.fail_v1('AR009', format('there is no run with id %s', run_));
  end if;
  died := r.trainer_owner is not null and r.trainer_owner <> owner_;
  if died and not agentrl.lapsed_v1(r.trainer_lease_until, r.trainer_lease) then
    perform agentrl.fail_v1('AR001', format('trainer %s holds run "%s" until %s: stop it, or wait until its lease lapses',
      r.trainer_owner, r.name, greatest(r.trainer_lease_until, agentrl.server_started_v1() + r.trainer_lease)::timestamptz(0)));
  end if;
  if checkpoint_ is not null then
    select * into c from agentrl.checkpoint k where k.id = checkpoint_ and k.run = run_ and k.abandoned_by is null;
    if not found then
      perform agentrl.fail_v1('AR009', format('checkpoint %s is not on the live history of run "%s"', checkpoint_, r.name));
    end if;
    -- The weights of the version, not the checkpoint's own file: engines load the one, trainers the other.
    select * into base from agentrl.policy_version v where v.run = run_ and v.version = c.version;
    base.updates := c.updates;
  else
    select * into base from agentrl.policy_version v where v.run = run_ and v.updates = 0 and v.status <> 'failed'
    order by v.version limit 1;
  end if;
  update agentrl.run set branch = run.branch + 1, trainer_fence = nextval('agentrl.fence'), trainer_owner = owner_,
    trainer_lease = make_interval(secs => lease_s), trainer_lease_until = clock_timestamp() + make_interval(secs => lease_s)
  where id = run_ returning * into r;
  fence := r.trainer_fence;
  branch := r.branch;
  step := coalesce(c.step, 0);
  updates := coalesce(c.updates, 0);
  items := agentrl.abandon_v1(r, step, owner_);
  if base.version is not null then
    select coalesce(max(v.version) + 1, 0) into version from agentrl.policy_version v where v.run = run_;
    perform agentrl.ensure_partitions_v1(run_, version);
    insert into agentrl.policy_version (run, version, parent, updates, effective_update, uri, checksum, status, branch, fence,
                                        published_at)
    values (run_, version, base.version, base.updates, base.updates, base.uri, base.checksum, 'published', r.branch, fence,
            clock_timestamp());
    perform agentrl.recompute_lag_v1(run_, version);
  end if;
  for l in delete from agentrl.lease where run = run_ returning * loop
    perform agentrl.return_lease_v1(r, l, died and l.in_update, owner_, 'its trainer was replaced');
    items := items || l.item;
  end loop;
  dropped := agentrl.refresh_ready_v1(r, owner_);
  select count(*) into returned from agentrl.ready q where q.run = run_ and q.item = any (items);
end $$;

-- Renews the trainer's lease.
create function agentrl.renew_trainer_v1(run_ bigint, fence_ bigint, lease_s double precision) returns void language plpgsql as $$
begin
  perform 1 from agentrl.run where id = run_ for no key update;
  perform agentrl.hold_trainer_v1(run_, fence_);
  update agentrl.run set trainer_lease = make_interval(secs => lease_s),
    trainer_lease_until = clock_timestamp() + make_interval(secs => lease_s) where id = run_;
end $$;

-- Gives the trainer's place free: its leases return uncharged and its fence writes nothing any more.
create function agentrl.release_trainer_v1(run_ bigint, fence_ bigint) returns void language plpgsql as $$
declare
  r agentrl.run;
  l agentrl.lease;
begin
  select * into r from agentrl.run where id = run_ for update;
  if r.trainer_fence = fence_ and r.trainer_owner is null then
    return;
  end if;
  r := agentrl.hold_trainer_v1(run_, fence_);
  for l in delete from agentrl.lease where run = run_ returning * loop
    perform agentrl.return_lease_v1(r, l, false, r.trainer_owner, 'its trainer was released');
  end loop;
  update agentrl.run set trainer_owner = null, trainer_lease_until = null where id = run_;
end $$;
comment on function agentrl.recompute_lag_v1 is 'Recomputes what lag counts from: the versions on the parent chain of `head_` count their own updates, the others twice those of their last ancestor on that chain minus their own. The memo for ready items is rebuilt by the caller.';
comment on function agentrl.abandon_v1 is 'Marks the steps after `keep` with their ledger and checkpoints as abandoned; their items come back to ready.';
comment on function agentrl.refresh_ready_v1 is 'Rebuilds oldest_update of everything in ready and drops what the new branch can''t use any more.';
comment on function agentrl.start_trainer_v1 is 'Takes the trainer fence and, with earlier history, opens a branch at a checkpoint or at the root, all in one transaction.';
comment on function agentrl.renew_trainer_v1 is 'Renews the trainer''s lease.';
comment on function agentrl.release_trainer_v1 is 'Gives the trainer''s place free: its leases return uncharged and its fence writes nothing any more.';
-- 46_claim.sql
-- Claiming items for a step, and renewing them before the optimizer step.

-- Whether anything could still become ready, apart from what is ready in range already.
create function agentrl.more_can_arise_v1(r agentrl.run, updates_ bigint, step_ bigint) returns boolean language plpgsql as $$
declare
  outstanding bigint := agentrl.outstanding_v1(r.id);
  in_range bigint;
begin
  select coalesce(sum(n_traj), 0) into in_range from agentrl.ready
  where run = r.id and (r.lag_bound is null or updates_ - oldest_update <= r.lag_bound);
  if outstanding > in_range then
    return true;
  end if;
  if r.status <> 'running' then
    return false;
  end if;
  return (r.target_steps is null or (r.target_steps - step_) * r.batch_max - outstanding >= r.group_size)
    and (exists (select 1 from agentrl.task_cursor where run = r.id and split = 'train' and n > 0)
         or exists (select 1 from agentrl.dropped where run = r.id and purpose = 'train' and retryable and retried_by is null));
end $$;

-- Leases whole items, oldest in range first: at least n_min trajectories, or what is left when no more can arise, or none.
create function agentrl.claim_v1(run_ bigint, fence_ bigint, n_min bigint, n_max bigint, lease_s double precision)
returns jsonb language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_trainer_v1(run_, fence_);
  h record;
  token_ bigint;
  examined bigint;
  admissible bigint;
  items uuid[];
  waiting text;
  doc jsonb := '[]';
begin
  perform agentrl.reap_v1(r);
  select * into h from agentrl.head_v1(run_);
  select coalesce(sum(n_traj), 0),
         coalesce(sum(n_traj) filter (where r.lag_bound is null or h.updates - oldest_update <= r.lag_bound), 0)
  into examined, admissible from agentrl.ready where run = run_;
  select coalesce(array_agg(item), '{}') into items from (
    select item from agentrl.ready
    where run = run_ and (r.lag_bound is null or h.updates - oldest_update <= r.lag_bound)
    order by oldest_update, at, item limit n_max / r.group_size for update skip locked) q;
  if cardinality(items) * r.group_size < n_min then
    if cardinality(items) * r.group_size < admissible or agentrl.more_can_arise_v1(r, h.updates, h.step) then
      waiting := 'rollouts';
      items := '{}';
    else
      waiting := 'nothing';
    end if;
  end if;
  if items <> '{}' then
    token_ := nextval('agentrl.fence');
    with d as (delete from agentrl.ready where run = run_ and item = any (items) returning *),
         i as (insert into agentrl.lease (run, item, token, fence, trajectories, start_versions, n_traj, n_tokens, oldest_update,
                                          attempts, oldest_start, ready_at, lease, lease_until)
               select run, item, token_, fence_, trajectories, start_versions, n_traj, n_tokens, oldest_update, attempts,
                      oldest_start, at, make_interval(secs => lease_s), clock_timestamp() + make_interval(secs => lease_s)
               from d returning *),
         e as (insert into agentrl.event (run, trajectory, from_place, to_place, fence, actor, why)
               select run_, t, 'ready', 'lease', fence_, r.trainer_owner, format('claim %s', token_)
               from i, unnest(i.trajectories) t)
    select jsonb_agg(jsonb_build_object(
             'item', i.item, 'token', token_, 'oldest_update', i.oldest_update, 'lag', h.updates - i.oldest_update,
             'trajectories', i.trajectories, 'start_versions', i.start_versions) order by i.oldest_update, i.ready_at, i.item)
    into doc from i;
  end if;
  return jsonb_build_object('examined', examined, 'admissible', admissible, 'waiting', waiting, 'items', doc);
end $$;

-- Before the optimizer step: all items must still be leased by these tokens and in range. From here a dying trainer is charged.
create function agentrl.renew_leases_v1(run_ bigint, fence_ bigint, items_ uuid[], tokens_ bigint[], lease_s double precision)
returns void language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_trainer_v1(run_, fence_);
  updates_ bigint;
  n bigint;
  oldest bigint;
begin
  select updates into updates_ from agentrl.head_v1(run_);
  with u as (
    update agentrl.lease l set in_update = true, lease = make_interval(secs => lease_s),
      lease_until = clock_timestamp() + make_interval(secs => lease_s)
    from unnest(items_, tokens_) m (item, token)
    where l.run = run_ and l.item = m.item and l.token = m.token and l.fence = fence_ returning l.oldest_update)
  select count(*), min(oldest_update) into n, oldest from u;
  if n <> cardinality(items_) then
    perform agentrl.fail_v1('AR008', format('%s of %s leases of run "%s" were lost: resume from the newest checkpoint',
                                            cardinality(items_) - n, cardinality(items_), r.name));
  elsif updates_ - oldest > r.lag_bound then
    perform agentrl.fail_v1('AR008', format('an item of run "%s" has lag %s, over the bound %s: resume from the newest checkpoint',
                                            r.name, updates_ - oldest, r.lag_bound));
  end if;
end $$;
comment on function agentrl.more_can_arise_v1 is 'Whether anything could still become ready, apart from what is ready in range already.';
comment on function agentrl.claim_v1 is 'Leases whole items, oldest in range first: at least n_min trajectories, or what is left when no more can arise, or none.';
comment on function agentrl.renew_leases_v1 is 'Before the optimizer step: all items must still be leased by these tokens and in range. From here a dying trainer is charged.';
-- 47_commit.sql
-- Committing a step: ledger, drops, releases and lease deletion in one transaction.

-- Checks that the named leases are whole claims, all held; raises otherwise.
create function agentrl.check_claim_v1(r agentrl.run, fence_ bigint, items_ uuid[], tokens_ bigint[]) returns void
language plpgsql as $$
declare
  held bigint;
  whole bigint;
begin
  select count(*) into held from (select distinct item, token from unnest(items_, tokens_) m (item, token)) m
  join agentrl.lease l on l.run = r.id and l.item = m.item and l.token = m.token and l.fence = fence_;
  if held <> cardinality(items_) then
    perform agentrl.fail_v1('AR008', format('the step names %s items of run "%s", but %s are leased to this trainer: resume',
                                            cardinality(items_), r.name, held));
  end if;
  select count(*) into whole from agentrl.lease where run = r.id and token = any (tokens_);
  if whole <> held then
    perform agentrl.fail_v1('AR008', format('the step leaves %s claimed items of run "%s" out: each must be consumed, dropped or released',
                                            whole - held, r.name));
  end if;
end $$;

-- Commits a step. `fates` holds 'consumed', 'released' or a drop reason per item. The same batch hash gives the first result.
create function agentrl.commit_step_v1(
  run_ bigint, fence_ bigint, step_ bigint, policy_updated_ boolean, trainer_version_ bigint, batch_hash_ text,
  denominators_ text, metrics_ text, items_ uuid[], tokens_ bigint[], fates text[],
  out step bigint, out updates bigint, out repeated boolean, out branch bigint) language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_trainer_v1(run_, fence_);
  h record;
  s agentrl.step;
  l record;
begin
  branch := r.branch;
  perform pg_advisory_xact_lock(hashtext('agentrl.commit'), run_::int);
  select * into s from agentrl.step x where x.run = run_ and x.step = step_ and x.abandoned_by is null;
  if found then
    if s.batch_hash <> batch_hash_ then
      perform agentrl.fail_v1('AR008', format('step %s of run "%s" is committed with another batch: resume', step_, r.name));
    end if;
    step := s.step; updates := s.updates; repeated := true;
    return;
  end if;
  select * into h from agentrl.head_v1(run_);
  if step_ <> h.step + 1 then
    perform agentrl.fail_v1('AR008', format('step %s does not follow step %s of run "%s": resume', step_, h.step, r.name));
  end if;
  if not exists (select 1 from agentrl.policy_version v where v.run = run_ and v.version = trainer_version_) then
    perform agentrl.fail_v1('AR005', format('trainer version %s has no row in run "%s"', trainer_version_, r.name));
  end if;
  perform agentrl.check_claim_v1(r, fence_, items_, tokens_);
  step := step_; updates := h.updates + policy_updated_::int; repeated := false;
  insert into agentrl.step (run, branch, step, updates, policy_updated, trainer_version, batch_hash, n_items, n_trajectories,
                            denominators, metrics, fence)
  select run_, r.branch, step_, h.updates + policy_updated_::int, policy_updated_, trainer_version_, batch_hash_, count(*),
         coalesce(sum(q.n_traj), 0), denominators_::jsonb, metrics_::jsonb, fence_
  from agentrl.lease q join unnest(items_, fates) m (item, fate) on q.item = m.item and m.fate = 'consumed' where q.run = run_;
  for l in
    delete from agentrl.lease q using unnest(items_, fates) m (item, fate)
    where q.run = run_ and q.item = m.item returning q.*, m.fate
  loop
    if l.fate = 'consumed' then
      if h.updates - l.oldest_update > r.lag_bound then
        perform agentrl.fail_v1('AR008', format('item %s has lag %s, over the bound %s of run "%s": resume', l.item,
                                                h.updates - l.oldest_update, r.lag_bound, r.name));
      end if;
      insert into agentrl.consumed (run, branch, step, item, trajectory, start_version, token, oldest_update, lag)
      select run_, r.branch, step_, l.item, m.id, m.start_version, l.token, l.oldest_update, h.updates - l.oldest_update
      from unnest(l.trajectories, l.start_versions) m (id, start_version);
      insert into agentrl.event (run, trajectory, from_place, to_place, fence, actor, why)
      select run_, t, 'lease', 'consumed', fence_, r.trainer_owner, format('step %s', step_) from unnest(l.trajectories) t;
    elsif l.fate = 'released' then
      perform agentrl.to_ready_v1(run_, l.item, l.trajectories, l.start_versions, l.attempts, l.ready_at, 'lease', fence_,
                                  r.trainer_owner, 'released by the trainer');
    else
      perform agentrl.drop_item_v1(run_, l.trajectories, l.start_versions, 'lease', l.fate, format('step %s', step_), fence_,
                                   r.trainer_owner);
    end if;
  end loop;
end $$;

-- Stores what a step used of one trajectory.
create function agentrl.add_trained_v1(
  run_ bigint, branch_ bigint, step_ bigint, trajectory_ uuid, logprobs_ bytea, values_ bytea, advantages_ bytea, returns_ bytea)
returns void language plpgsql as $$
begin
  insert into agentrl.trained (run, start_version, trajectory, branch, step, reward_id, logprobs, "values", advantages, returns)
  select c.run, c.start_version, c.trajectory, c.branch, c.step,
         (select max(id) from agentrl.reward where trajectory = trajectory_), logprobs_, values_, advantages_, returns_
  from agentrl.consumed c where c.run = run_ and c.branch = branch_ and c.step = step_ and c.trajectory = trajectory_;
  if not found then
    perform agentrl.fail_v1('AR006', format('trained.trajectory: %s was not consumed by step %s', trajectory_, step_));
  end if;
end $$;
comment on function agentrl.check_claim_v1 is 'Checks that the named leases are whole claims, all held; raises otherwise.';
comment on function agentrl.commit_step_v1 is 'Commits a step. `fates` holds ''consumed'', ''released'' or a drop reason per item. The same batch hash gives the first result.';
comment on function agentrl.add_trained_v1 is 'Stores what a step used of one trajectory.';
-- 60_views.sql
-- Views that people type when they debug.

-- The place of each trajectory, per consuming run.
create view agentrl.trajectory_state as
  select run, trajectory, purpose, 'live' as place, null::timestamptz as since from agentrl.live
  union all select run, trajectory, purpose, 'grade_job', at from agentrl.grade_job
  union all select run, trajectory, 'train', 'graded', at from agentrl.graded
  union all select run, unnest(trajectories), 'train', 'ready', at from agentrl.ready
  union all select run, unnest(trajectories), 'train', 'lease', leased_at from agentrl.lease
  union all select run, trajectory, 'train', 'consumed', at from agentrl.consumed where abandoned_by is null
  union all select run, trajectory, purpose, 'dropped', at from agentrl.dropped
  union all select run, trajectory, 'eval', 'evaluated', at from agentrl.evaluated;

-- Training trajectories in the places that they still leave: small tables, whatever was trained before.
create function agentrl.work_v1(
  run_ bigint, out live bigint, out grade_job bigint, out graded bigint, out ready bigint, out lease bigint) language sql stable as $$
  select
    (select count(*) from agentrl.live x where x.run = run_ and x.purpose = 'train'),
    (select count(*) from agentrl.grade_job x where x.run = run_ and x.purpose = 'train'),
    (select count(*) from agentrl.graded x where x.run = run_),
    (select coalesce(sum(x.n_traj), 0)::bigint from agentrl.ready x where x.run = run_),
    (select coalesce(sum(x.n_traj), 0)::bigint from agentrl.lease x where x.run = run_)
$$;

-- created = the sum of the seven training places, for each run at every moment; evaluation episodes stand apart.
-- A function, so that a query of one run touches the partitions of that run only.
create function agentrl.conservation_v1(
  run_ bigint, out created bigint, out live bigint, out grade_job bigint, out graded bigint, out ready bigint, out lease bigint,
  out consumed bigint, out dropped bigint, out evaluated bigint, out eval_open bigint) language sql stable as $$
  select
    (select count(*) from agentrl.trajectory x where x.run = run_ and x.purpose = 'train') as created,
    (select count(*) from agentrl.live x where x.run = run_ and x.purpose = 'train') as live,
    (select count(*) from agentrl.grade_job x where x.run = run_ and x.purpose = 'train') as grade_job,
    (select count(*) from agentrl.graded x where x.run = run_) as graded,
    (select coalesce(sum(x.n_traj), 0)::bigint from agentrl.ready x where x.run = run_) as ready,
    (select coalesce(sum(x.n_traj), 0)::bigint from agentrl.lease x where x.run = run_) as lease,
    (select count(*) from agentrl.consumed x where x.run = run_ and x.abandoned_by is null) as consumed,
    (select count(*) from agentrl.dropped x where x.run = run_ and x.purpose = 'train') as dropped,
    (select count(*) from agentrl.evaluated x where x.run = run_) as evaluated,
    (select count(*) from agentrl.live x where x.run = run_ and x.purpose = 'eval')
      + (select count(*) from agentrl.grade_job x where x.run = run_ and x.purpose = 'eval') as eval_open
$$;

-- The sum of places beside what was created, per run.
create view agentrl.conservation as
select r.id as run, r.name, c.*, c.created = c.live + c.grade_job + c.graded + c.ready + c.lease + c.consumed + c.dropped as holds
from agentrl.run r cross join lateral agentrl.conservation_v1(r.id) c;

-- Where the live history of each run stands.
create view agentrl.head as
select r.id as run, r.name, r.branch, h.step, h.updates from agentrl.run r cross join lateral agentrl.head_v1(r.id) h;

-- The newest verdict of each trajectory.
create view agentrl.newest_reward as
select distinct on (trajectory) * from agentrl.reward order by trajectory, id desc;

-- Scores of the evaluations so far; an episode that was never graded counts in neither sum.
create view agentrl.evaluation_score as
select e.id as evaluation, e.run, e.version, e.updates, e.step, e.split, e.n,
       count(w.value) as graded, count(*) filter (where w.success) as successes, coalesce(avg(w.value), 0) as mean_reward,
       e.finished_at is not null as finished
from agentrl.evaluation e
left join agentrl.evaluated d on d.evaluation = e.id
left join lateral (select value, success from agentrl.reward where trajectory = d.trajectory order by id desc limit 1) w on true
group by e.id;
comment on view agentrl.trajectory_state is 'The place of each trajectory, per consuming run.';
comment on function agentrl.work_v1 is 'Training trajectories in the places that they still leave: small tables, whatever was trained before.';
comment on function agentrl.conservation_v1 is 'created = the sum of the seven training places, for each run at every moment; evaluation episodes stand apart. A function, so that a query of one run touches the partitions of that run only.';
comment on view agentrl.conservation is 'The sum of places beside what was created, per run.';
comment on view agentrl.head is 'Where the live history of each run stands.';
comment on view agentrl.newest_reward is 'The newest verdict of each trajectory.';
comment on view agentrl.evaluation_score is 'Scores of the evaluations so far; an episode that was never graded counts in neither sum.';
insert into agentrl.schema_version (version) values (1);
