-- name: latest_trajectory
-- The newest training trajectory that has ended, with a verdict if any has one.
select r.name as run, t.id as trajectory, t.task_id, t.outcome, t.ended_at
from agentrl.trajectory t
join agentrl.run r on r.id = t.run
where t.purpose = 'train' and t.root is null and t.outcome is not null and (:run::text is null or t.run = (select agentrl.find_run_v1(:run)))
order by t.outcome = 'graded' desc, t.ended_at desc nulls last
limit 1;
