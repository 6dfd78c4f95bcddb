-- name: dropped_by_reason
-- Why trajectories were not trained on, with an example of each reason.
select run_name as run, purpose, reason, from_place, trajectories, retried, waiting_for_retry, example, newest
from agentrl.v_dropped_by_reason
where :run::text is null or run = (select agentrl.find_run_v1(:run))
order by run_name, trajectories desc, reason;
