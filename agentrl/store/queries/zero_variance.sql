-- name: zero_variance
-- Complete groups whose members all got the same reward, newest first.
-- limit: 100
select run_name as run, grp, task_id, size, reward, step, created_at
from agentrl.v_zero_variance
where :run::text is null or run = (select agentrl.find_run_v1(:run))
order by created_at desc, grp
limit :limit::bigint;
