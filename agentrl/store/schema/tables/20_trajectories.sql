-- What happened in each episode: wide, cold rows, partitioned by (run, start_version) and never updated after their end.

-- One attempt at one task; written at its start and at its end only.
create table agentrl.trajectory (
  run bigint not null,                                      -- The run that created it.
  start_version bigint not null,                            -- Newest published version at the start: the partition key and nothing else.
  id uuid not null,                                         -- Key of the trajectory.
  purpose text not null check (purpose in (@Purpose@)),     -- Whether it may be trained on.
  evaluation bigint,                                        -- Evaluation it belongs to; NULL for training.
  split text not null,                                      -- Split of its task.
  task_idx bigint not null,                                 -- Position of its task in the split.
  task_id text not null,                                    -- The environment's own id of the task.
  cursor bigint not null,                                   -- Task cursor that it was served from.
  grp uuid,                                                 -- Group it belongs to; NULL without groups.
  seat bigint not null,                                     -- Seat in the group, task of the evaluation, or number among the sub-agents of the episode.
  attempt bigint not null,                                  -- Attempt at this seat, from 1.
  failures bigint not null default 0,                       -- Charged attempts before this one.
  retry_of uuid,                                            -- Attempt that it repeats.
  parent uuid,                                              -- Trajectory that started it as a sub-agent.
  parent_seg bigint,                                        -- Segment of the parent: the turn that started it.
  root uuid,                                                -- Episode that it is a part of as a sub-agent; NULL for an episode.
  payload json,                                             -- Task of a sub-agent; that of an episode is in task.
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
  origin text not null check (origin in (@Origin@)),        -- Where the traffic came from.
  started_at timestamptz not null default clock_timestamp(), -- When it was opened.
  ended_at timestamptz,                                     -- When its end was written.
  complete boolean not null default false,                  -- The end is written and all its segments are there, however it ended.
  termination text check (termination in (@Termination@)),  -- How it ended; NULL while running or when reaped.
  outcome text check (outcome in (@Outcome@)),              -- Class of the ending; NULL for a sub-agent whose verdict is its parent's.
  ended_to text check (ended_to in (@Place@)),              -- Place that the completion moved it to.
  error text,                                               -- What failed, for infrastructure outcomes.
  n_segments bigint,                                        -- Segments stored at the end.
  n_tokens bigint,                                          -- Observation and action tokens.
  n_actions bigint,                                         -- Action tokens.
  versions bigint[],                                        -- Distinct policy versions of its action tokens and of its sub-agents', ascending.
  primary key (id, run, start_version)
) partition by range (run, start_version);
create index on agentrl.trajectory (grp) where grp is not null;
create index on agentrl.trajectory (root) where root is not null;

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
  finish_reason text check (finish_reason in (@FinishReason@)), -- Why the engine stopped.
  observation_text text not null,                           -- Observation as text; what text can't hold is replaced.
  action_text text not null,                                -- Action as text; what text can't hold is replaced.
  action_raw bytea,                                         -- Raw bytes of the action as the engine gave them.
  tool_calls json not null,                                 -- Parsed calls; what jsonb can't hold is replaced.
  tool_results json not null,                               -- Results of the calls; what jsonb can't hold is replaced.
  tool_raw bytea[],                                         -- Raw output per result; NULL when no result has any.
  exact bytea,                                              -- JSON of texts, calls and results as delivered; NULL when nothing was replaced.
  compacted json,                                           -- Messages that the environment put in the place of the history; NULL when it did not.
  reward double precision,                                  -- Reward of the turn itself.
  queue_s double precision not null,                        -- Seconds waited for the engine.
  generate_s double precision not null,                     -- Seconds of generation.
  tool_s double precision not null,                         -- Seconds of tool execution.
  stored_at timestamptz not null default clock_timestamp(), -- When it was stored.
  unit_starts bytea,                                        -- One byte per action token, 1 where a unit of credit begins; NULL when the turn is one.
  primary key (trajectory, seg, run, start_version),
  check (octet_length(ids) = 4 * (n_obs + n_act)),
  check (octet_length(logprobs) = 4 * n_act),
  check (octet_length(loss_mask) = n_act),
  check (octet_length(unit_starts) = n_act),
  check (octet_length(token_versions) = 4 * n_act)
) partition by range (run, start_version);

-- float32 arrays that a step used of a trajectory, over its action tokens in order.
create table agentrl.trained (
  run bigint not null,                                      -- The run that trained.
  start_version bigint not null,                            -- Partition key of the trajectory; of an imported one the trainer's version.
  trajectory uuid not null,                                 -- The trajectory.
  branch bigint not null,                                   -- Branch of the step.
  step bigint not null,                                     -- The step.
  reward_id bigint,                                         -- Reward row that the step used.
  logprobs bytea not null,                                  -- Log-probs under the trainer's weights.
  "values" bytea,                                           -- Values of the critic.
  advantages bytea not null,                                -- Advantages.
  returns bytea,                                            -- Returns.
  local_advantages bytea,                                   -- Per unit of credit, V of the critic after what followed it minus V before it.
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

-- lz4 costs a third of pglz, but not every server is built with it.
do $$
begin
  alter table agentrl.segment alter ids set compression lz4, alter logprobs set compression lz4,
    alter observation_text set compression lz4, alter action_text set compression lz4, alter tool_results set compression lz4;
exception when feature_not_supported or invalid_parameter_value then
  raise notice 'this server has no lz4; segments are compressed with pglz';
end $$;
