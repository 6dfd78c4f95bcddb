-- name: weight_loads
-- How long engines took to load weights, beside the time between policy updates; runs newest first.
-- limit: 100
select r.name as run, l.loads, l.load_s, l.slowest_s, u.update_s, l.load_s / nullif(u.update_s, 0) as share
from agentrl.run r
join (select run, count(*) as loads, avg(seconds) as load_s, max(seconds) as slowest_s
      from agentrl.engine_version where outcome = 'loaded' and not pinned and seconds is not null group by run) l on l.run = r.id
join (select run, extract(epoch from max(at) - min(at))::float8 / nullif(max(updates) - min(updates), 0) as update_s
      from agentrl.step where abandoned_by is null and policy_updated group by run) u on u.run = r.id
where :run::text is null or r.id = (select agentrl.find_run_v1(:run))
order by r.id desc
limit :limit::bigint;
