-- name: steps
-- The ledger of steps: data, lag and whether the step is on the live history.
select r.name as run, s.step, s.branch, s.updates, s.policy_updated, s.trainer_version, s.n_items, s.n_trajectories,
       c.mean_lag, c.max_lag, agentrl.number(s.metrics, 'reward_mean') as reward_mean, agentrl.number(s.metrics, 'wall_s') as wall_s,
       s.abandoned_by, s.at
from agentrl.step s
join agentrl.run r on r.id = s.run
left join lateral (select avg(lag)::float8 as mean_lag, max(lag) as max_lag from agentrl.consumed c
                   where c.run = s.run and c.branch = s.branch and c.step = s.step) c on true
where :run::text is null or s.run = (select agentrl.find_run_v1(:run))
order by r.name, s.branch, s.step;
