-- Runs, their tasks, weights and checkpoints. Integers are bigint throughout: one width on the wire and in every comparison.
-- json is for what programs read back verbatim (key order, 1e16), jsonb for what people query.

-- Fencing numbers: whoever holds the greatest one for a row may write it.
create sequence agentrl.fence as bigint;

-- One training run; its row is the lock of the protocol (key share for moves, exclusive for a trainer start).
create table agentrl.run (
  id bigint generated always as identity primary key,       -- Key of the run in every other table.
  name text not null unique,                                -- Name the user chose.
  environment text not null,                                -- Environment that the tasks belong to.
  config json not null,                                     -- Resolved configuration as the run was started.
  config_hash text not null,                                -- Hash of the resolved configuration.
  seed bigint not null,                                     -- Seed from which the episode seeds derive.
  lag_bound bigint check (lag_bound >= 0),                  -- Largest lag in policy updates of a trained token; NULL means unbounded.
  batch_min bigint not null check (batch_min > 0),          -- Fewest trajectories in a step; admission by lag counts in them.
  batch_max bigint not null check (batch_max >= batch_min), -- Most trajectories in a step.
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
  group_deadline interval,                                  -- Age at which a group that is still open is given up; NULL means never.
  long_tokens bigint check (long_tokens > 0),               -- Tokens from which an item counts as long; NULL means no reservation.
  long_share double precision not null default 0 check (long_share >= 0 and long_share < 1), -- Share of each batch reserved for long items.
  long_wait interval not null default interval '30 seconds', -- Longest that a claim waits for long items before it fills their places.
  resume_partial boolean not null default false,            -- Whether an episode that lost its worker is continued from its last turn.
  origins text[] not null default '{simulated,recorded}',   -- Origins whose trajectories it opens and takes for training.
  ahead bigint check (ahead >= 0),                          -- Largest batches under way beside the one in hand; NULL means as many smallest ones as the lag bound.
  staleness_mode text not null default 'trajectory' check (staleness_mode = 'trajectory' or staleness_mode = 'segment_mask' and lag_bound is not null), -- Which token the bound is for: the oldest one, or with segment_mask the newest, and older ones are left out of the loss.
  group_extra bigint not null default 0 check (group_extra = 0 or group_extra > 0 and group_size > 1), -- Redundant seats of each group; the first `group_size` graded members close it.
  oversample bigint check (oversample >= 0 and oversample <= lag_bound * batch_max), -- Trajectories under way beside one batch; NULL means as many as the lag bound admits.
  check (batch_min % group_size = 0 and batch_max % group_size = 0),
  check (lag_bound is distinct from 0 or batch_min = batch_max),
  check (ahead <= lag_bound)
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
  bytes bigint,                                             -- Size of the weights' file.
  phases jsonb,                                             -- Seconds of the trainer by phase: export, write, checksum, stage, push, verify.
  removed_at timestamptz,                                   -- When the file was removed, since nobody needed it any more.
  primary key (run, version),
  foreign key (run, parent) references agentrl.policy_version
);

-- Which engine loaded which version, when, and what that took: a row per attempt.
create table agentrl.engine_version (
  id bigint generated always as identity primary key,       -- Order of the loads.
  run bigint not null references agentrl.run,               -- The run.
  engine text not null,                                     -- Name of the engine process, or URL of the server.
  version bigint not null,                                  -- Version that it loaded.
  loaded_at timestamptz not null default now(),             -- When it was loaded, or failed to be.
  outcome text not null default 'loaded' check (outcome in ('loaded', 'failed')), -- Whether the engine holds the version since then.
  attempt bigint not null default 1,                        -- The how many-th attempt of this engine at this version.
  transport text,                                           -- How it came: file, disk, tensor or distributed.
  bytes bigint,                                             -- Bytes read or sent.
  seconds double precision,                                 -- Wall time of the attempt.
  phases jsonb,                                             -- Seconds by phase: lock, read, checksum, check, build, pause, transfer, verify, resume.
  error text,                                               -- Why it failed.
  loader text,                                              -- Process that brought the weights; NULL: the engine itself.
  fence bigint,                                             -- Fence of the trainer that pushed them; NULL: a worker loaded them.
  pinned boolean not null default false,                    -- Of an engine that stays with the version it evaluates.
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
  removed_at timestamptz,                                   -- When its files were removed, since newer ones are kept.
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

-- Takings of another run's stored trajectories, each by an explicit call.
create table agentrl.import (
  id bigint generated always as identity primary key,       -- Key of the import.
  run bigint not null references agentrl.run,               -- The consuming run.
  source bigint not null references agentrl.run,            -- Run that created the trajectories.
  filter jsonb not null,                                    -- What was asked for.
  items bigint not null,                                    -- Items that became ready.
  trajectories bigint not null,                             -- Trajectories of those items.
  at timestamptz not null default now(),                    -- When they were taken.
  check (run <> source)
);
create index on agentrl.import (run);
create index on agentrl.import (source);

-- What retention has removed: counts per detached partition, so that conservation goes on to hold.
create table agentrl.retired (
  run bigint not null references agentrl.run,               -- The run.
  low bigint not null,                                      -- First start version of the partition.
  high bigint not null,                                     -- First start version after it.
  created bigint not null,                                  -- Training trajectories that it held.
  evaluated bigint not null,                                -- Evaluation trajectories that it held.
  bytes bigint not null,                                    -- Size on disk of what was removed.
  at timestamptz not null default now(),                    -- When it was removed.
  primary key (run, low)
);
