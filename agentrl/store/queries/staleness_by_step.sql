-- name: staleness_by_step
-- How old what each step trained on was: mean, 95th percentile and largest lag in policy updates.
select run_name as run, step, trajectories, mean_lag, p95_lag, max_lag, lag_bound
from agentrl.v_staleness
where :run::text is null or run = (select agentrl.find_run_v1(:run))
order by run_name, step;
