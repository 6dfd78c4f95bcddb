-- name: episode_errors
-- What episodes failed of, how often and on how many tasks, with the newest of each kind: errors that differ in numbers are one.
-- limit: 20
with failed as (
  select r.name as run, t.purpose, t.termination, t.task_id, t.id, t.ended_at, t.error,
    regexp_replace(
      regexp_replace(t.error, 'task (''[^'']*''|"[^"]*")', 'task'), '(?<![:\w])\d+(\.\d+)?|agentrl-[0-9a-f]{24}', '#', 'g') as kind
  from agentrl.trajectory t
  join agentrl.run r on r.id = t.run
  where t.outcome = 'infrastructure' and t.error is not null
    and (:run::text is null or t.run = (select agentrl.find_run_v1(:run)))
)
select run, purpose, termination, count(*) as episodes, count(distinct task_id) as tasks,
  (array_agg(error order by ended_at desc, id))[1] as error, (array_agg(id order by ended_at desc, id))[1] as newest
from failed
group by run, purpose, termination, kind
order by run, episodes desc, kind
limit :limit::bigint;
