-- name: engines
-- What each engine holds, the furthest behind first, with what its newest load took.
select run_name as run, engine, version, behind, behind_s, pinned, loaded_at, transport, seconds, phases, bytes, attempt, loads, failed,
       last_error
from agentrl.v_engines
where :run::text is null or run = (select agentrl.find_run_v1(:run))
order by run_name, behind desc nulls first, engine;
