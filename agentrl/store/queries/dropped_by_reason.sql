-- name: dropped_by_reason
-- Why trajectories were not trained on, with an example of each reason.
select r.name as run, d.purpose, d.reason, d.from_place, count(*) as trajectories, count(d.retried_by) as retried,
       count(*) filter (where d.retryable and d.retried_by is null) as waiting_for_retry, min(d.detail) as example,
       (array_agg(d.trajectory order by d.at desc))[1] as newest
from agentrl.dropped d
join agentrl.run r on r.id = d.run
where :run::text is null or d.run = (select agentrl.find_run_v1(:run))
group by r.name, d.purpose, d.reason, d.from_place
order by r.name, trajectories desc, d.reason;
