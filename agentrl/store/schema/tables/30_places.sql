-- State is where the row is: each training trajectory is in exactly one of the seven places. Rows move only in functions.

-- A group of trajectories of one task; its row is the lock under which every end of a member re-evaluates it.
create table agentrl.grp (
  id uuid primary key,                                      -- Key of the group; the item's key in ready and lease.
  run bigint not null references agentrl.run,               -- The run.
  split text not null,                                      -- Split of the task.
  task_idx bigint not null,                                 -- Position of the task.
  cursor bigint not null,                                   -- Task cursor that it was served from.
  size bigint not null,                                     -- Graded members that make it complete.
  next_seat bigint not null default 0,                      -- First seat that was never opened.
  state text not null default 'open' check (state in ('open', 'complete', 'dropped')), -- Open until all seats are graded or one is lost.
  created_at timestamptz not null default clock_timestamp(), -- When it was opened.
  extra bigint not null default 0 check (extra >= 0)        -- Redundant seats beside `size`: as many may be lost.
);
create index on agentrl.grp (run, created_at) where state = 'open';

-- Running episodes; no index on lease_until, so renewals stay in the page.
create table agentrl.live (
  trajectory uuid primary key,                              -- The trajectory.
  run bigint not null,                                      -- The run.
  start_version bigint not null,                            -- Partition key of the trajectory.
  purpose text not null check (purpose in (@Purpose@)),     -- Training or evaluation.
  grp uuid,                                                 -- Its group.
  worker text not null,                                     -- Process that runs it.
  fence bigint not null,                                    -- Fence that its writes must carry.
  next_seg bigint not null default 0,                       -- Index of the segment expected next.
  n_tokens bigint not null default 0,                       -- Observation and action tokens stored so far.
  n_actions bigint not null default 0,                      -- Action tokens stored so far.
  versions bigint[] not null default '{}',                  -- Distinct policy versions of the action tokens so far, those of sub-agents too, ascending.
  lease interval not null,                                  -- Length of the lease.
  lease_until timestamptz not null,                         -- When the lease lapses.
  parked_at timestamptz                                     -- When it was left to whoever continues it; NULL while a worker holds it.
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
create index on agentrl.live (run);

-- Ended episodes that wait for a verdict from a reward worker.
create table agentrl.grade_job (
  trajectory uuid primary key,                              -- The trajectory.
  run bigint not null,                                      -- The run.
  start_version bigint not null,                            -- Partition key of the trajectory.
  purpose text not null check (purpose in (@Purpose@)),     -- Training or evaluation.
  grp uuid,                                                 -- Its group.
  worker text,                                              -- Reward worker that holds it; NULL when free.
  fence bigint,                                             -- Fence of that worker.
  lease interval,                                           -- Length of its lease.
  lease_until timestamptz,                                  -- When its lease lapses.
  at timestamptz not null default clock_timestamp(),        -- When it arrived.
  attempts bigint not null default 0,                       -- Times that a reward worker failed at it or died with it.
  evidence bytea                                            -- What it is graded by: compressed JSON; NULL for an outside agent.
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
  oldest_update bigint not null,                            -- What the lag bound limits is updates(head) minus this; may be negative on a dead branch.
  attempts bigint not null default 0,                       -- Claims that ended with a dead trainer.
  oldest_start timestamptz not null,                        -- When its first trajectory was opened; age counts from here.
  at timestamptz not null default clock_timestamp(),        -- When it arrived.
  source bigint,                                            -- Run that created the trajectories; NULL means the consuming run.
  environment text,                                         -- Environment of the trajectories; NULL means that of the consuming run.
  primary key (run, item)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
create index on agentrl.ready (run, oldest_update, at, item);

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
  oldest_update bigint not null,                            -- What the lag bound limits is updates(head) minus this.
  attempts bigint not null,                                 -- Claims that ended with a dead trainer before this one.
  in_update boolean not null default false,                 -- Renewed for the optimizer step: a trainer that dies from here on is charged.
  oldest_start timestamptz not null,                        -- When its first trajectory was opened.
  ready_at timestamptz not null,                            -- When the item became ready; kept on a release.
  leased_at timestamptz not null default clock_timestamp(), -- When it was claimed.
  lease interval not null,                                  -- Length of the lease.
  lease_until timestamptz not null,                         -- When the lease lapses.
  source bigint,                                            -- Run that created the trajectories; NULL means the consuming run.
  environment text,                                         -- Environment of the trajectories; NULL means that of the consuming run.
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
  lag bigint not null,                                      -- Lag of the item's oldest token in the loss when it was consumed.
  abandoned_by bigint,                                      -- Branch whose start left the step behind; NULL on the live history.
  at timestamptz not null default clock_timestamp(),        -- When it was consumed.
  source bigint,                                            -- Run that created the trajectory; NULL means the consuming run.
  masked_tokens bigint not null default 0 check (masked_tokens >= 0), -- Action tokens left out of the loss because they were out of range.
  masked_versions bigint[],                                 -- Policy versions of those tokens, ascending; NULL when there are none.
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
  purpose text not null check (purpose in (@Purpose@)),     -- Training or evaluation.
  evaluation bigint,                                        -- Evaluation it belongs to.
  grp uuid,                                                 -- Its group.
  from_place text not null check (from_place in (@Place@)), -- Place it was dropped from.
  reason text not null check (reason in (@DropReason@)),    -- Why.
  detail text,                                              -- What exactly happened.
  charged boolean not null,                                 -- Whether the attempt counts against max_attempts.
  retryable boolean not null,                               -- Whether its seat may be served again.
  retried_by uuid,                                          -- Attempt that repeats it; a retry is pending while retryable and this is NULL.
  at timestamptz not null default clock_timestamp(),        -- When it was dropped.
  source bigint,                                            -- Run that created the trajectory; NULL means the consuming run.
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

-- Trajectories that a run took from another one, once each.
create table agentrl.imported (
  run bigint not null,                                      -- The consuming run.
  trajectory uuid not null,                                 -- The trajectory.
  import bigint not null references agentrl.import,         -- The taking that it came with.
  primary key (run, trajectory)
);

-- Requests that opened episodes: the same request gives the same episodes again.
create table agentrl.open_request (
  request uuid primary key,                                 -- The worker's own id of the request.
  run bigint not null,                                      -- The run.
  worker text not null,                                     -- Process that asked.
  start_version bigint not null,                            -- Partition key of the episodes.
  trajectories uuid[] not null,                             -- Episodes it was given.
  at timestamptz not null default clock_timestamp(),        -- When it was served.
  fence bigint not null default nextval('agentrl.fence')    -- Greater than those it gave: an episode with a greater one went to another request since.
);

-- Who moved what from where to where, when, under which fence, and why. Only the moves of the state machine are possible.
create table agentrl.event (
  id bigint generated always as identity primary key,       -- Order of the moves.
  run bigint not null,                                      -- The run.
  trajectory uuid not null,                                 -- The trajectory that moved.
  from_place text check (from_place in (@Place@)),          -- Place it left; NULL at its start.
  to_place text not null check (to_place in (@Place@)),     -- Place it came to.
  fence bigint,                                             -- Fence of whoever moved it.
  actor text not null,                                      -- Who moved it.
  why text not null,                                        -- The occasion.
  at timestamptz not null default clock_timestamp(),        -- When.
  constraint event_is_a_legal_move check (coalesce(from_place, 'new') || ' -> ' || to_place in (
    'new -> live', 'new -> ready', 'live -> live', 'live -> grade_job', 'live -> graded', 'live -> evaluated', 'live -> dropped',
    'grade_job -> graded', 'grade_job -> evaluated', 'grade_job -> dropped', 'graded -> ready', 'graded -> dropped',
    'ready -> lease', 'ready -> dropped', 'lease -> ready', 'lease -> consumed', 'lease -> dropped', 'consumed -> ready'))
);
create index on agentrl.event (trajectory, id);
