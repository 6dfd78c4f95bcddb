-- name: staleness_by_step
-- How old what each step trained on was: mean, 95th percentile and largest lag in policy updates, and what was left out as older.
select run_name as run, step, trajectories, mean_lag, p95_lag, max_lag, lag_bound, masked_tokens
from agentrl.v_staleness
where :run::text is null or run = (select agentrl.find_run_v1(:run))
order by run_name, step;
