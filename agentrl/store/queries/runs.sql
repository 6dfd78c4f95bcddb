-- name: runs
-- All runs, newest first: status, steps, policy updates, who trains and when they were made.
select run_name as run, environment, status, seed, step, updates, target_steps, policy_version, trainer, trainer_lapsed, running,
       waiting, ready, leased, last_step_at, created_at
from agentrl.v_runs
where :run::text is null or run = (select agentrl.find_run_v1(:run))
order by v_runs.run desc;
