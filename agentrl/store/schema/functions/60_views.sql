-- Views over all places, for programs and for people.

-- The place of each trajectory, per consuming run.
create or replace view agentrl.trajectory_state (
  run,        -- The consuming run.
  trajectory, -- The trajectory.
  purpose,    -- Training or evaluation.
  place,      -- The table that holds it.
  since       -- When it arrived there; NULL while it runs.
) as
  select run, trajectory, purpose, 'live', null::timestamptz from agentrl.live
  union all select run, trajectory, purpose, 'grade_job', at from agentrl.grade_job
  union all select run, trajectory, 'train', 'graded', at from agentrl.graded
  union all select run, unnest(trajectories), 'train', 'ready', at from agentrl.ready
  union all select run, unnest(trajectories), 'train', 'lease', leased_at from agentrl.lease
  union all select run, trajectory, 'train', 'consumed', at from agentrl.consumed where abandoned_by is null
  union all select run, trajectory, purpose, 'dropped', at from agentrl.dropped
  union all select run, trajectory, 'eval', 'evaluated', at from agentrl.evaluated;

-- Training trajectories in the places that they still leave: small tables, whatever was trained before.
create or replace function agentrl.work_v1(
  run_ bigint, out live bigint, out grade_job bigint, out graded bigint, out ready bigint, out lease bigint) language sql stable as $$
  select
    (select count(*) from agentrl.live x where x.run = run_ and x.purpose = 'train'),
    (select count(*) from agentrl.grade_job x where x.run = run_ and x.purpose = 'train'),
    (select count(*) from agentrl.graded x where x.run = run_),
    (select coalesce(sum(x.n_traj), 0)::bigint from agentrl.ready x where x.run = run_),
    (select coalesce(sum(x.n_traj), 0)::bigint from agentrl.lease x where x.run = run_)
$$;

-- created (opened here, removed since by retention, or imported) = the sum of the seven training places, for each run at every
-- moment; evaluation episodes stand apart.
-- A function, so that a query of one run touches the partitions of that run only.
create or replace function agentrl.conservation_v1(
  run_ bigint, out created bigint, out live bigint, out grade_job bigint, out graded bigint, out ready bigint, out lease bigint,
  out consumed bigint, out dropped bigint, out evaluated bigint, out eval_open bigint) language sql stable as $$
  select
    (select count(*) from agentrl.trajectory x where x.run = run_ and x.purpose = 'train' and x.root is null
       and not exists (select 1 from agentrl.retired q where q.run = run_ and x.start_version >= q.low and x.start_version < q.high))
      + (select coalesce(sum(q.created), 0)::bigint from agentrl.retired q where q.run = run_)
      + (select count(*) from agentrl.imported x where x.run = run_) as created,
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

-- Where the live history of each run stands.
create or replace view agentrl.head (
  run,    -- The run.
  name,   -- Its name.
  branch, -- Live branch: one per trainer start.
  step,   -- Last committed step.
  updates -- Policy updates after it.
) as
select r.id, r.name, r.branch, h.step, h.updates from agentrl.run r cross join lateral agentrl.head_v1(r.id) h;

-- The newest verdict of each trajectory.
create or replace view agentrl.newest_reward (
  id,             -- Order of the verdicts.
  run,            -- The run.
  trajectory,     -- The trajectory.
  grader,         -- Who graded.
  grader_version, -- Version of the grader.
  value,          -- The reward; always finite.
  success,        -- The environment's own yes or no.
  detail,         -- What the grader adds.
  duration_s,     -- Seconds of grading.
  at              -- When the verdict was given.
) as
select distinct on (trajectory) id, run, trajectory, grader, grader_version, value, success, detail, duration_s, at
from agentrl.reward order by trajectory, id desc;

-- Scores of the evaluations so far; an episode that was never graded counts in neither sum.
create or replace view agentrl.evaluation_score (
  evaluation,  -- Key of the evaluation.
  run,         -- The run.
  version,     -- Version that is scored.
  updates,     -- Policy updates of that version.
  step,        -- Step after which it was requested.
  split,       -- Split it is scored on.
  n,           -- Tasks asked for.
  graded,      -- Episodes with a verdict.
  successes,   -- Episodes that the environment calls a success.
  mean_reward, -- Mean reward of the graded episodes; 0 when there is none.
  finished     -- Whether the last task is scored or given up.
) as
select e.id, e.run, e.version, e.updates, e.step, e.split, e.n,
       count(w.value), count(*) filter (where w.success), coalesce(avg(w.value), 0),
       e.finished_at is not null
from agentrl.evaluation e
left join agentrl.evaluated d on d.evaluation = e.id
left join lateral (select value, success from agentrl.reward where trajectory = d.trajectory order by id desc limit 1) w on true
group by e.id;
