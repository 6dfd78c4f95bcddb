-- name: episode_errors
-- What episodes failed of, how often and on how many tasks, with the newest of each kind.
-- limit: 20
select r.name as run, t.purpose, t.termination, count(*) as episodes, count(distinct t.task_id) as tasks,
  regexp_replace(t.error, 'task (''[^'']*''|"[^"]*")', 'task ...') as error,
  (array_agg(t.id order by t.ended_at desc))[1] as newest
from agentrl.trajectory t
join agentrl.run r on r.id = t.run
where t.outcome = 'infrastructure' and t.error is not null
  and (:run::text is null or t.run = (select agentrl.find_run_v1(:run)))
group by r.name, t.purpose, t.termination, 6
order by r.name, episodes desc, error
limit :limit::bigint;
