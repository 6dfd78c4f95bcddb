-- name: versions
-- Policy versions with their lineage, status and the engines that loaded them.
select r.name as run, v.version, v.parent, v.updates, v.effective_update, v.status, v.branch, v.staged_at, v.published_at, v.uri,
       (select string_agg(distinct e.engine, ', ') from agentrl.engine_version e where e.run = v.run and e.version = v.version) as engines
from agentrl.policy_version v
join agentrl.run r on r.id = v.run
where :run::text is null or v.run = (select agentrl.find_run_v1(:run))
order by r.name, v.version;
