-- name: reward_by_task
-- Episodes, mean reward and success of each task, hardest first.
select r.name as run, t.purpose, t.task_id, count(*) as episodes, avg(w.value) as mean_reward, stddev_samp(w.value) as spread,
       avg(w.success::int)::float8 as success, avg(t.n_actions)::float8 as action_tokens
from agentrl.trajectory t
join agentrl.run r on r.id = t.run
join agentrl.newest_reward w on w.trajectory = t.id
where :run::text is null or t.run = (select agentrl.find_run_v1(:run))
group by r.name, t.purpose, t.task_id
order by r.name, t.purpose, mean_reward, t.task_id;
