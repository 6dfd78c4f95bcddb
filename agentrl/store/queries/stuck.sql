-- name: stuck
-- What waits longest: rows whose lease lapsed, and the oldest rows of each place that still has to move.
select r.name as run, s.place, s.trajectory, s.waiting_s, s.lapsed, s.holder, t.task_id
from (
  select run, 'live' as place, trajectory, agentrl.lapsed_v1(lease_until, lease) as lapsed, worker as holder,
         extract(epoch from now() - lease_until + lease)::float8 as waiting_s from agentrl.live
  union all
  select run, 'grade_job', trajectory, coalesce(agentrl.lapsed_v1(lease_until, lease), false), worker,
         extract(epoch from now() - at)::float8 from agentrl.grade_job
  union all
  select run, 'graded', trajectory, false, null, extract(epoch from now() - at)::float8 from agentrl.graded
  union all
  select run, 'ready', unnest(trajectories), false, null, extract(epoch from now() - at)::float8 from agentrl.ready
  union all
  select run, 'lease', unnest(trajectories), agentrl.lapsed_v1(lease_until, lease), fence::text,
         extract(epoch from now() - leased_at)::float8 from agentrl.lease) s
join agentrl.run r on r.id = s.run
join agentrl.trajectory t on t.id = s.trajectory
where :run::text is null or s.run = (select agentrl.find_run_v1(:run))
order by s.lapsed desc, s.waiting_s desc
limit 50;
