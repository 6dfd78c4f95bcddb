-- name: evaluations
-- Scores of the evaluations, oldest first.
select r.name as run, e.evaluation, e.step, e.version, e.updates, e.split, e.n, e.graded, e.successes,
       (e.successes::float8 / nullif(e.graded, 0)) as success, case when e.graded > 0 then e.mean_reward end as mean_reward, e.finished
from agentrl.evaluation_score e
join agentrl.run r on r.id = e.run
where :run::text is null or e.run = (select agentrl.find_run_v1(:run))
order by r.name, e.evaluation;
