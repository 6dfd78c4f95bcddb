-- name: stuck
-- What waits longest: rows whose lease lapsed, then the oldest rows of each place that still has to move.
-- limit: 50
select run_name as run, place, why, trajectory, waiting_s, lapsed, holder, task_id
from agentrl.v_stuck
where :run::text is null or run = (select agentrl.find_run_v1(:run))
order by lapsed desc, waiting_s desc
limit :limit::bigint;
