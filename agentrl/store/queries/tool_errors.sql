-- name: tool_errors
-- Which tool fails how often and how long its calls take, with the newest error.
-- limit: 100
select run_name as run, tool, calls, errors, error_share, unreadable, mean_s, p95_s, example, newest
from agentrl.v_tool_errors
where :run::text is null or run = (select agentrl.find_run_v1(:run))
order by run_name, errors desc, tool
limit :limit::bigint;
