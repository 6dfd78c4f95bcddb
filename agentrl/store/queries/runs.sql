-- name: runs
-- All runs, newest first: status, steps, policy updates and when they were made.
select r.name as run, r.environment, r.status, r.seed, s.step, s.updates, r.target_steps, r.created_at
from agentrl.run r
left join lateral (select max(step) as step, max(updates) as updates from agentrl.step
                   where run = r.id and abandoned_by is null) s on true
where :run::text is null or r.id = (select agentrl.find_run_v1(:run))
order by r.id desc;
