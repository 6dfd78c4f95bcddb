-- Views that people type when they debug: names and columns are public API. Each has the run's id and its name, so that a condition on run reaches the partitions of that run only.

-- All runs, with what their trainer and their places look like now.
create or replace view agentrl.v_runs (
  run,            -- Key of the run in every other table.
  run_name,       -- Name the user chose.
  environment,    -- Environment that the tasks belong to.
  status,         -- Whether work may open.
  branch,         -- Live branch: one per trainer start.
  step,           -- Last committed step of the live history; 0 before the first.
  target_steps,   -- Step after which nothing opens any more.
  updates,        -- Policy updates after that step.
  policy_version, -- Newest published version.
  trainer,        -- Process that holds the trainer's place; NULL when nobody does.
  trainer_lapsed, -- Whether its lease has lapsed: it is dead or hangs.
  running,        -- Training episodes that run.
  waiting,        -- Ended ones that wait for a verdict or for their group.
  ready,          -- Trajectories that wait for the trainer.
  leased,         -- Trajectories that the trainer holds.
  seed,           -- Seed from which the episode seeds derive.
  last_step_at,   -- When the last step was committed.
  created_at      -- When the run was created.
) as
select r.id, r.name, r.environment, r.status, r.branch, coalesce(s.step, 0), r.target_steps, coalesce(s.updates, 0),
       (select max(v.version) from agentrl.policy_version v where v.run = r.id and v.status = 'published'),
       r.trainer_owner, agentrl.lapsed_v1(r.trainer_lease_until, r.trainer_lease), w.live, w.grade_job + w.graded, w.ready, w.lease,
       r.seed, s.at, r.created_at
from agentrl.run r
cross join lateral agentrl.work_v1(r.id) w
left join lateral (select step, updates, at from agentrl.step
                   where run = r.id and abandoned_by is null order by step desc limit 1) s on true;

-- Where all training trajectories of a run are: created = the sum of the seven places, at every moment.
create or replace view agentrl.v_conservation (
  run,       -- The run.
  run_name,  -- Its name.
  created,   -- Training trajectories opened here or imported, those removed by retention included.
  live,      -- Running.
  grade_job, -- Ended, waiting for a verdict.
  graded,    -- Waiting for their group.
  ready,     -- Waiting for the trainer.
  lease,     -- Held by the trainer.
  consumed,  -- Trained on, on the live history.
  dropped,   -- Not to be trained on.
  evaluated, -- Finished evaluation episodes, which stand apart.
  eval_open, -- Evaluation episodes that run or wait for a verdict.
  holds      -- Whether created is the sum of the seven places.
) as
select r.id, r.name, c.*, c.created = c.live + c.grade_job + c.graded + c.ready + c.lease + c.consumed + c.dropped
from agentrl.run r cross join lateral agentrl.conservation_v1(r.id) c;

-- Every trajectory that still has to move, and what it waits for; the lapsed and the oldest are the stuck ones.
create or replace view agentrl.v_stuck (
  run,        -- The consuming run.
  run_name,   -- Its name.
  place,      -- The table that holds it.
  why,        -- What it waits for; 'lease lapsed' and 'running too long' (over ten leases) need a look.
  trajectory, -- The trajectory.
  task_id,    -- The environment's own id of its task.
  waiting_s,  -- Seconds since it came to this place.
  lapsed,     -- Whether its lease has lapsed: its holder is dead or hangs.
  holder      -- Process, or fence of the trainer, that holds it; NULL when nobody does.
) as
select r.id, r.name, s.place,
       case when s.lapsed then 'lease lapsed'
            when s.place = 'live' and s.since is null and now() - t.started_at > 10 * r.lease then 'running too long' else s.why end, s.trajectory, t.task_id,
       extract(epoch from now() - coalesce(s.since, t.started_at))::double precision, s.lapsed, s.holder
from (
  select run, run as source, trajectory, start_version, 'live' as place, parked_at as since,
         case when parked_at is null then worker end as holder,
         parked_at is null and agentrl.lapsed_v1(lease_until, lease) as lapsed,
         case when parked_at is null then 'running' else 'waits for a worker to continue it' end as why from agentrl.live
  union all
  select run, run, trajectory, start_version, 'grade_job', at, worker, coalesce(agentrl.lapsed_v1(lease_until, lease), false),
         case when worker is null then 'waits for a reward worker' else 'is being graded' end from agentrl.grade_job
  union all
  select run, run, trajectory, start_version, 'graded', at, null, false, 'waits for its group' from agentrl.graded
  union all
  select run, coalesce(source, run), unnest(trajectories), unnest(start_versions), 'ready', at, null, false,
         'waits for the trainer' from agentrl.ready
  union all
  select run, coalesce(source, run), unnest(trajectories), unnest(start_versions), 'lease', leased_at, 'fence ' || fence,
         agentrl.lapsed_v1(lease_until, lease), 'is being trained' from agentrl.lease) s
join agentrl.run r on r.id = s.run
cross join lateral (select x.started_at, x.task_id from agentrl.trajectory x
                    where x.run = s.source and x.start_version = s.start_version and x.id = s.trajectory limit 1) t;

-- Every episode on a line of its own: what it was, how it ended, what it earned, and where it is in the run that created it.
create or replace view agentrl.v_trajectories (
  run,           -- The run that created it.
  run_name,      -- Its name.
  trajectory,    -- The trajectory; ids sort by the time of their start.
  purpose,       -- Training or evaluation.
  environment,   -- Environment name.
  split,         -- Split of its task.
  task_id,       -- The environment's own id of its task.
  grp,           -- Its group; NULL without groups.
  seat,          -- Seat in the group, or task of the evaluation.
  attempt,       -- Attempt at this seat, from 1.
  place,         -- The table that holds it.
  termination,   -- How it ended; NULL while it runs, or when its worker was lost.
  outcome,       -- Class of the ending.
  reward,        -- Newest verdict.
  success,       -- The environment's own yes or no.
  segments,      -- Segments stored.
  tokens,        -- Observation and action tokens.
  actions,       -- Action tokens.
  first_version, -- Oldest policy version of its action tokens.
  last_version,  -- Newest policy version of its action tokens.
  step,          -- Step that trained it, on the live history.
  lag,           -- Policy updates between its oldest token in the loss and that step.
  drop_reason,   -- Why it was dropped.
  error,         -- What failed, or what exactly happened when it was dropped.
  worker,        -- Process that ran it.
  started_at,    -- When it was opened.
  ended_at,      -- When its end was written.
  duration_s     -- Seconds from start to end; of one that runs until now.
) as
select r.id, r.name, t.id, t.purpose, t.environment, t.split, t.task_id, t.grp, t.seat, t.attempt,
       case when c.trajectory is not null then 'consumed' when d.trajectory is not null then 'dropped'
            when e.trajectory is not null then 'evaluated' when l.trajectory is not null then 'live'
            when j.trajectory is not null then 'grade_job' when g.trajectory is not null then 'graded'
            when exists (select from agentrl.lease x where x.run = t.run and x.item = coalesce(t.grp, t.id)) then 'lease'
            when exists (select from agentrl.ready x where x.run = t.run and x.item = coalesce(t.grp, t.id)) then 'ready' end,
       t.termination, t.outcome, w.value, w.success, coalesce(t.n_segments, l.next_seg), coalesce(t.n_tokens, l.n_tokens),
       coalesce(t.n_actions, l.n_actions), v.versions[1], v.versions[cardinality(v.versions)], c.step, c.lag, d.reason,
       coalesce(t.error, d.detail), t.worker, t.started_at, t.ended_at,
       extract(epoch from case when l.trajectory is null then t.ended_at else now() end - t.started_at)::double precision
from agentrl.trajectory t
join agentrl.run r on r.id = t.run
left join agentrl.live l on l.trajectory = t.id
left join agentrl.grade_job j on j.trajectory = t.id
left join agentrl.graded g on g.trajectory = t.id
left join agentrl.consumed c on c.run = t.run and c.trajectory = t.id and c.abandoned_by is null
left join agentrl.dropped d on d.run = t.run and d.trajectory = t.id
left join agentrl.evaluated e on e.run = t.run and e.trajectory = t.id
left join lateral (select value, success from agentrl.reward where trajectory = t.id order by id desc limit 1) w on true
cross join lateral (select coalesce(t.versions, l.versions) as versions) v
where t.root is null;

-- Why trajectories were not trained on.
create or replace view agentrl.v_dropped_by_reason (
  run,               -- The consuming run.
  run_name,          -- Its name.
  purpose,           -- Training or evaluation.
  reason,            -- Why.
  from_place,        -- Place they were dropped from.
  trajectories,      -- How many.
  retried,           -- How many of them a later attempt repeats.
  waiting_for_retry, -- How many will still be repeated.
  example,           -- What exactly happened to one of them.
  newest,            -- The newest of them.
  last_at            -- When that one was dropped.
) as
select r.id, r.name, d.purpose, d.reason, d.from_place, count(*), count(d.retried_by),
       count(*) filter (where d.retryable and d.retried_by is null), min(d.detail), (array_agg(d.trajectory order by d.at desc))[1],
       max(d.at)
from agentrl.dropped d
join agentrl.run r on r.id = d.run
group by r.id, d.purpose, d.reason, d.from_place;

-- How old what each step trained on was, in policy updates of the oldest token in the loss of its item; live history only.
create or replace view agentrl.v_staleness (
  run,          -- The consuming run.
  run_name,     -- Its name.
  step,         -- The step.
  trajectories, -- Trajectories trained.
  mean_lag,     -- Mean lag.
  p95_lag,      -- Lag that 95 % of them do not exceed.
  max_lag,      -- Largest lag.
  lag_bound,    -- What the run allows; NULL means unbounded.
  masked_tokens -- Action tokens left out of the loss because they were over the bound (staleness.mode=segment_mask).
) as
select r.id, r.name, c.step, count(*), avg(c.lag)::double precision, percentile_disc(0.95) within group (order by c.lag), max(c.lag),
       r.lag_bound, sum(c.masked_tokens)::bigint
from agentrl.consumed c
join agentrl.run r on r.id = c.run
where c.abandoned_by is null
group by r.id, c.step;

-- Reward and success of each task, over the trajectories that ended; the newest verdict of each counts.
create or replace view agentrl.v_reward_by_task (
  run,           -- The run that created them.
  run_name,      -- Its name.
  purpose,       -- Training or evaluation.
  task_id,       -- The environment's own id of the task.
  episodes,      -- Episodes that ended, however they ended.
  graded,        -- Those with a verdict: the numbers that follow are theirs.
  mean_reward,   -- Mean reward.
  spread,        -- Standard deviation of the reward; NULL for a single verdict.
  success,       -- Share of successes among the verdicts that say yes or no.
  action_tokens  -- Mean number of action tokens.
) as
select r.id, r.name, t.purpose, t.task_id, count(*), count(w.value), avg(agentrl.finite(w.value)),
       stddev_samp(agentrl.finite(w.value)), avg(w.success::int)::double precision,
       (avg(t.n_actions) filter (where w.value is not null))::double precision
from agentrl.trajectory t
join agentrl.run r on r.id = t.run
left join lateral (select value, success from agentrl.reward where trajectory = t.id order by id desc limit 1) w on true
where t.ended_at is not null and t.root is null
group by r.id, t.purpose, t.task_id;

-- Groups: how many seats are wanted, graded and failed, and what became of the group.
create or replace view agentrl.v_groups (
  run,         -- The run.
  run_name,    -- Its name.
  grp,         -- Key of the group.
  task_id,     -- The environment's own id of its task.
  state,       -- Open until all seats are graded or one is lost.
  size,        -- Seats wanted.
  opened,      -- Seats ever opened.
  attempts,    -- Episodes opened for those seats.
  running,     -- Episodes that run now.
  graded,      -- Episodes with a verdict.
  ungraded,    -- Episodes that the policy's behaviour ended without one.
  failed,      -- Attempts that count against the limit: infrastructure, no action, no verdict.
  mean_reward, -- Mean of the newest verdicts.
  spread,      -- Standard deviation of the newest verdicts.
  step,        -- Step that trained it, on the live history.
  age_s,       -- Seconds since it was opened.
  created_at   -- When it was opened.
) as
select r.id, r.name, g.id, k.task_id, g.state, g.size, g.next_seat, m.attempts, m.running, m.graded, m.ungraded, m.failed,
       m.mean_reward, m.spread, m.step, extract(epoch from now() - g.created_at)::double precision, g.created_at
from agentrl.grp g
join agentrl.run r on r.id = g.run
join agentrl.task k on k.run = g.run and k.split = g.split and k.idx = g.task_idx
left join lateral (
  select count(*) as attempts, count(l.trajectory) as running, count(w.value) as graded,
         count(*) filter (where t.outcome = 'policy_ended' and d.trajectory is null) as ungraded,
         count(*) filter (where d.charged) as failed, avg(agentrl.finite(w.value)) as mean_reward,
         stddev_samp(agentrl.finite(w.value)) as spread, max(c.step) as step
  from agentrl.trajectory t
  left join agentrl.live l on l.trajectory = t.id
  left join agentrl.dropped d on d.run = t.run and d.trajectory = t.id
  left join agentrl.consumed c on c.run = t.run and c.trajectory = t.id and c.abandoned_by is null
  left join lateral (select value from agentrl.reward where trajectory = t.id order by id desc limit 1) w on true
  where t.run = g.run and t.grp = g.id) m on true;

-- Complete groups whose members all got the same reward: they teach a group-relative algorithm nothing.
create or replace view agentrl.v_zero_variance (
  run,        -- The run.
  run_name,   -- Its name.
  grp,        -- Key of the group.
  task_id,    -- The environment's own id of its task.
  size,       -- Members.
  reward,     -- The reward that all of them got.
  step,       -- Step that trained it, on the live history.
  created_at  -- When it was opened.
) as
select run, run_name, grp, task_id, size, mean_reward, step, created_at
from agentrl.v_groups
where state = 'complete' and size > 1 and graded = size and spread = 0;

-- Calls of each tool: how many failed, how long they took, and the newest failure.
create or replace view agentrl.v_tool_errors (
  run,         -- The run that created the trajectories.
  run_name,    -- Its name.
  tool,        -- Name of the tool as the policy wrote it; empty when no name could be read.
  calls,       -- Results that were given.
  errors,      -- Results that were errors.
  error_share, -- Share of errors.
  unreadable,  -- Calls that could not be parsed.
  mean_s,      -- Mean seconds of a call.
  p95_s,       -- Seconds that 95 % of the calls do not exceed.
  example,     -- First 200 characters of the newest error.
  newest       -- Trajectory of the newest error.
) as
select r.id, r.name, x.tool, count(x.failed), count(*) filter (where x.failed),
       count(*) filter (where x.failed)::double precision / nullif(count(x.failed), 0), count(*) filter (where x.unreadable),
       avg(x.seconds), percentile_cont(0.95) within group (order by x.seconds),
       (array_agg(x.said order by x.stored_at desc) filter (where x.failed))[1],
       (array_agg(x.trajectory order by x.stored_at desc) filter (where x.failed))[1]
from (
  select s.run, s.trajectory, s.stored_at, j ->> 'name' as tool, (j ->> 'is_error')::boolean as failed, false as unreadable,
         agentrl.finite((j ->> 'duration_s')::double precision) as seconds, left(j ->> 'text', 200) as said
  from agentrl.segment s cross join lateral json_array_elements(s.tool_results) j
  union all
  select s.run, s.trajectory, s.stored_at, j ->> 'name', null, j ->> 'error' is not null, null, null
  from agentrl.segment s cross join lateral json_array_elements(s.tool_calls) j) x
join agentrl.run r on r.id = x.run
group by r.id, x.tool;

-- How episodes ended, and what they earned.
create or replace view agentrl.v_stop_reasons (
  run,           -- The run that created them.
  run_name,      -- Its name.
  purpose,       -- Training or evaluation.
  termination,   -- How they ended; 'running' while they run, 'reaped' when their worker was lost.
  outcome,       -- Class of the ending.
  trajectories,  -- How many.
  share,         -- Share of all episodes of this purpose.
  mean_segments, -- Mean number of segments.
  action_tokens, -- Mean number of action tokens.
  mean_reward    -- Mean of the newest verdicts.
) as
select r.id, r.name, t.purpose, t.ending, t.outcome, count(*),
       count(*)::double precision / sum(count(*)) over (partition by r.id, t.purpose)::double precision,
       avg(t.n_segments)::double precision, avg(t.n_actions)::double precision, avg(agentrl.finite(t.value))
from (
  select t.run, t.purpose, t.outcome, t.n_segments, t.n_actions, w.value,
         coalesce(t.termination, case when l.trajectory is null then 'reaped' else 'running' end) as ending
  from agentrl.trajectory t
  left join agentrl.live l on l.trajectory = t.id
  left join lateral (select value from agentrl.reward where trajectory = t.id order by id desc limit 1) w on true
  where t.root is null) t
join agentrl.run r on r.id = t.run
group by r.id, t.purpose, t.ending, t.outcome;

-- Segments whose stored arrays disagree with their counts, versions or neighbours, and trajectories that disagree with their
-- segments; empty when all is well.
create or replace view agentrl.v_token_mismatch (
  run,        -- The run that created it.
  run_name,   -- Its name.
  trajectory, -- The trajectory.
  seg,        -- The segment; NULL when it is about the whole trajectory.
  problem     -- What disagrees.
) as
select r.id, r.name, p.trajectory, p.seg, p.problem
from (
  select s.run, s.trajectory, s.seg, unnest(array_remove(array[
           case when s.ids <> 4 * (s.n_obs + s.n_act) then format('ids hold %s bytes for %s tokens', s.ids, s.n_obs + s.n_act) end,
           case when s.logprobs <> 4 * s.n_act then format('logprobs hold %s bytes for %s action tokens', s.logprobs, s.n_act) end,
           case when s.mask <> s.n_act then format('loss_mask holds %s bytes for %s action tokens', s.mask, s.n_act) end,
           case when s.units <> s.n_act then format('unit_starts hold %s bytes for %s action tokens', s.units, s.n_act) end,
           case when octet_length(s.token_versions) <> 4 * s.n_act
                then format('token_versions hold %s bytes for %s action tokens', octet_length(s.token_versions), s.n_act)
                when s.versions <> agentrl.distinct_versions_v1(s.token_versions)
                  or s.token_versions is null and cardinality(s.versions) <> (s.n_act > 0)::int
                then format('versions %s are not those of the %s action tokens', s.versions, s.n_act) end,
           case when exists (select 1 from unnest(s.versions) u (version) where not exists (
                       select 1 from agentrl.policy_version v where v.run = s.run and v.version = u.version))
                then format('of the versions %s some have no row', s.versions) end,
           case when s.context not in (s.context_before, s.context_before + 1)
                then format('context %s follows context %s', s.context, s.context_before) end,
           case when s.seg <> s.seg_before + 1 then format('segment %s follows segment %s', s.seg, s.seg_before) end], null)) as problem
  from (
    select run, trajectory, seg, n_obs, n_act, versions, token_versions, context, octet_length(ids) as ids,
           octet_length(logprobs) as logprobs, octet_length(loss_mask) as mask,
           octet_length(unit_starts) as units,
           lag(context, 1, 0::bigint) over (partition by run, trajectory order by seg) as context_before,
           lag(seg, 1, -1::bigint) over (partition by run, trajectory order by seg) as seg_before
    from agentrl.segment) s
  union all
  select t.run, t.id, null, unnest(array_remove(array[
           case when t.n_segments <> coalesce(s.n, 0) then format('%s segments announced, %s stored', t.n_segments, coalesce(s.n, 0)) end,
           case when t.n_tokens <> s.tokens then format('%s tokens announced, %s stored', t.n_tokens, s.tokens) end,
           case when t.n_actions <> s.actions then format('%s action tokens announced, %s stored', t.n_actions, s.actions) end], null))
  from agentrl.trajectory t
  left join (select run, trajectory, count(*) as n, sum(n_obs + n_act) as tokens, sum(n_act) as actions
             from agentrl.segment group by run, trajectory) s on s.run = t.run and s.trajectory = t.id
  where t.complete) p
join agentrl.run r on r.id = p.run;

-- Where the time of each step went; live history only.
create or replace view agentrl.v_step_timing (
  run,          -- The run.
  run_name,     -- Its name.
  step,         -- The step.
  at,           -- When it was committed.
  since_last_s, -- Seconds since the step before.
  wall_s,       -- Seconds of the step, as the trainer measured them.
  wait_s,       -- Seconds that the trainer waited for data.
  wait_share,   -- Share of the step that it waited.
  train_s,      -- Seconds of the update.
  sync_s,       -- Seconds of publishing weights.
  tokens_per_s, -- Tokens trained a second.
  data_age_s    -- Mean seconds from the end of a trajectory to the step that trained it.
) as
select r.id, r.name, s.step, s.at, extract(epoch from s.at - lag(s.at) over (partition by r.id order by s.step))::double precision,
       s.wall_s, s.wait_s, s.wait_s / nullif(s.wall_s, 0), s.train_s, s.sync_share * s.wall_s, s.tokens_per_s, c.age
from (
  select run, branch, step, at, agentrl.number(metrics, 'wall_s') as wall_s, agentrl.number(metrics, 'wait_s') as wait_s,
         agentrl.number(metrics, 'train_s') as train_s, agentrl.number(metrics, 'sync_share') as sync_share,
         agentrl.number(metrics, 'tokens_per_s') as tokens_per_s
  from agentrl.step where abandoned_by is null) s
join agentrl.run r on r.id = s.run
left join lateral (
  select avg(extract(epoch from c.at - t.ended_at))::double precision as age from agentrl.consumed c
  join agentrl.trajectory t on t.run = coalesce(c.source, c.run) and t.start_version = c.start_version and t.id = c.trajectory
  where c.run = s.run and c.branch = s.branch and c.step = s.step) c on true;

-- Each process that ever worked for a run: its last sign of life and what it holds.
create or replace view agentrl.v_workers (
  run,       -- The run.
  run_name,  -- Its name.
  worker,    -- Name of the process.
  role,      -- Rollout, reward or trainer.
  holds,     -- Episodes, grade jobs or leased items that it holds.
  last_seen, -- Newest lease renewal; of a worker that holds nothing its last request or load of weights.
  silent_s,  -- Seconds since then.
  lapsed     -- Whether all that it holds has lapsed: it is dead or hangs.
) as
select r.id, r.name, w.worker, w.role, sum(w.holds)::bigint, max(w.seen),
       extract(epoch from now() - max(w.seen))::double precision, coalesce(bool_and(w.lapsed), false)
from (
  select run, worker, 'rollout' as role, count(*) as holds, max(lease_until - lease) as seen,
         bool_and(agentrl.lapsed_v1(lease_until, lease)) as lapsed from agentrl.live group by run, worker
  union all
  select run, worker, 'rollout', 0, max(at), null from agentrl.open_request group by run, worker
  union all
  select run, coalesce(loader, engine), 'rollout', 0, max(loaded_at), null from agentrl.engine_version where fence is null
  group by run, coalesce(loader, engine)
  union all
  select run, worker, 'reward', count(*), max(lease_until - lease), bool_and(agentrl.lapsed_v1(lease_until, lease))
  from agentrl.grade_job where worker is not null group by run, worker
  union all
  select id, trainer_owner, 'trainer', (select count(*) from agentrl.lease l where l.run = q.id and l.fence = q.trainer_fence),
         trainer_lease_until - trainer_lease, agentrl.lapsed_v1(trainer_lease_until, trainer_lease)
  from agentrl.run q where trainer_owner is not null) w
join agentrl.run r on r.id = w.run
group by r.id, w.worker, w.role;

-- Trajectories whose graders, or whose first and later verdicts, disagree.
create or replace view agentrl.v_grader_disagreement (
  run,            -- The run.
  run_name,       -- Its name.
  trajectory,     -- The trajectory.
  task_id,        -- The environment's own id of its task.
  verdicts,       -- Verdicts that it got.
  graders,        -- Graders and versions that gave them.
  lowest,         -- Lowest reward.
  highest,        -- Highest reward.
  first_reward,   -- The first reward.
  newest_reward,  -- The newest reward: the one that counts.
  newest_success, -- The newest yes or no.
  step,           -- Step that trained it, on the live history.
  last_at         -- When the newest verdict was given.
) as
select r.id, r.name, w.trajectory, t.task_id, w.verdicts, w.graders, w.lowest, w.highest, w.first_reward, w.newest_reward,
       w.newest_success, c.step, w.last_at
from (
  select run, trajectory, count(*) as verdicts, string_agg(distinct concat_ws(' ', grader, grader_version), ', ') as graders,
         min(agentrl.finite(value)) as lowest, max(agentrl.finite(value)) as highest,
         (array_agg(value order by id))[1] as first_reward, (array_agg(value order by id desc))[1] as newest_reward,
         (array_agg(success order by id desc))[1] as newest_success, max(at) as last_at
  from agentrl.reward group by run, trajectory
  having min(value) <> max(value) or bool_and(success) <> bool_or(success)) w
join agentrl.run r on r.id = w.run
join agentrl.trajectory t on t.run = w.run and t.id = w.trajectory
left join agentrl.consumed c on c.run = w.run and c.trajectory = w.trajectory and c.abandoned_by is null;

-- Sub-agents, each with the episode that it is a part of and the verdict that counts for it.
create or replace view agentrl.v_sub_agents (
  run,         -- The run that created them.
  run_name,    -- Its name.
  root,        -- Episode that it is a part of, and whose place is its place.
  parent,      -- Trajectory that started it.
  parent_seg,  -- Segment of the parent: the turn that started it.
  seat,        -- Number among the sub-agents of the episode.
  trajectory,  -- The sub-agent.
  environment, -- Name of its environment.
  task_id,     -- Id of its task.
  termination, -- How it ended.
  segments,    -- Segments stored.
  actions,     -- Action tokens.
  reward,      -- Newest verdict that counts for it; NULL without one.
  own_verdict, -- Whether that is its own; else it is its parent's.
  purpose,     -- Training or evaluation.
  started_at   -- When it began.
) as
select r.id, r.name, t.root, t.parent, t.parent_seg, t.seat, t.id, t.environment, t.task_id, t.termination, t.n_segments, t.n_actions,
       w.value, t.outcome is not null, t.purpose, t.started_at
from agentrl.trajectory t
join agentrl.run r on r.id = t.run
left join agentrl.reward w on w.id = agentrl.verdict_v1(t.run, t.id)
where t.root is not null;
