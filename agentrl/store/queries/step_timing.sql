-- name: step_timing
-- Where the time of each step went: waiting for data, update, publishing, and the age of the data.
select run_name as run, step, since_last_s, wall_s, wait_s, wait_share, train_s, sync_s, tokens_per_s, data_age_s, at
from agentrl.v_step_timing
where :run::text is null or run = (select agentrl.find_run_v1(:run))
order by run_name, step;
