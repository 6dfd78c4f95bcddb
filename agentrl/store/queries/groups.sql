-- name: groups
-- Groups, newest first: seats wanted, graded and failed, and their rewards.
-- limit: 100
select run_name as run, grp, task_id, state, size, opened, attempts, running, graded, ungraded, failed, mean_reward, spread, step, age_s
from agentrl.v_groups
where :run::text is null or run = (select agentrl.find_run_v1(:run))
order by created_at desc, grp
limit :limit::bigint;
