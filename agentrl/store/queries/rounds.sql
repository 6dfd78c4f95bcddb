-- name: rounds
-- Rounds of the schedule drop_last: what each update took, how much of it had started on older weights, and what it left.
select r.name as run, s.step, s.branch, s.n_trajectories as trained, agentrl.number(s.metrics, 'late') as late,
       agentrl.number(s.metrics, 'carried_over') as carried_over,
       agentrl.number(s.metrics, 'carried_over') / r.batch_max as share, s.at
from agentrl.step s
join agentrl.run r on r.id = s.run
where s.abandoned_by is null and s.metrics ? 'carried_over'
  and (:run::text is null or s.run = (select agentrl.find_run_v1(:run)))
order by r.name, s.step;
