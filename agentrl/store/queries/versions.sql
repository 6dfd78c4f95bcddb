-- name: versions
-- What became of each policy version, in words: gaps explained, how long publishing took, who loaded it.
select run_name as run, version, parent, updates, effective_update, status, branch, explanation, publish_s, phases, bytes, staged_at,
       published_at, engines, loaded_s, failed_loads, uri
from agentrl.v_versions
where :run::text is null or run = (select agentrl.find_run_v1(:run))
order by run_name, branch, updates, version;
