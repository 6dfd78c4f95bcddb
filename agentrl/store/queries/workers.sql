-- name: workers
-- Processes that worked for a run, the newest sign of life first.
-- limit: 100
select run_name as run, worker, role, holds, last_seen, silent_s, lapsed
from agentrl.v_workers
where :run::text is null or run = (select agentrl.find_run_v1(:run))
order by last_seen desc, worker
limit :limit::bigint;
