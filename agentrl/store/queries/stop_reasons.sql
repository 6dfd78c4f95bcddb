-- name: stop_reasons
-- How episodes ended, how often, and what they earned.
select run_name as run, purpose, termination, outcome, trajectories, share, mean_segments, action_tokens, mean_reward
from agentrl.v_stop_reasons
where :run::text is null or run = (select agentrl.find_run_v1(:run))
order by run_name, purpose, trajectories desc, termination;
