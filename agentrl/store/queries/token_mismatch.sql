-- name: token_mismatch
-- Segments and trajectories whose stored arrays, counts and versions disagree; no rows when all is well.
-- limit: 100
select run_name as run, trajectory, seg, problem
from agentrl.v_token_mismatch
where :run::text is null or run = (select agentrl.find_run_v1(:run))
order by run_name, trajectory, seg nulls first, problem
limit :limit::bigint;
