-- name: reward_by_task
-- Episodes, mean reward and success of each task, hardest first.
-- limit: 200
select run_name as run, purpose, task_id, episodes, graded, mean_reward, spread, success, action_tokens
from agentrl.v_reward_by_task
where :run::text is null or run = (select agentrl.find_run_v1(:run))
order by run_name, purpose, mean_reward, task_id
limit :limit::bigint;
