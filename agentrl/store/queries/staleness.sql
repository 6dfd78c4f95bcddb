-- name: staleness
-- How old what was trained was: trajectories and tokens by lag, for each step (step NULL: over all).
select r.name as run, c.step, c.lag, count(*) as trajectories, sum(t.n_tokens)::bigint as tokens,
       (count(*) / sum(count(*)) over (partition by r.id, grouping(c.step), c.step))::float8 as share
from agentrl.consumed c
join agentrl.run r on r.id = c.run
join agentrl.trajectory t on t.run = coalesce(c.source, c.run) and t.start_version = c.start_version and t.id = c.trajectory
where c.abandoned_by is null and (:run::text is null or c.run = (select agentrl.find_run_v1(:run)))
group by grouping sets ((r.id, r.name, c.step, c.lag), (r.id, r.name, c.lag))
order by r.name, c.step nulls first, c.lag;
