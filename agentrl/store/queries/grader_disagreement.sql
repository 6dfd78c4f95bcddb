-- name: grader_disagreement
-- Trajectories whose graders or re-grades disagree, the largest difference first.
-- limit: 100
select run_name as run, trajectory, task_id, verdicts, graders, first_reward, newest_reward, newest_success, lowest, highest, step, last_at
from agentrl.v_grader_disagreement
where :run::text is null or run = (select agentrl.find_run_v1(:run))
order by highest - lowest desc, trajectory
limit :limit::bigint;
