-- name: trajectories
-- Episodes, newest first: task, place, ending, reward, size, policy versions and what trained or dropped them.
-- limit: 50
select run_name as run, trajectory, purpose, task_id, place, termination, outcome, reward, segments, tokens, actions, first_version,
       last_version, step, lag, drop_reason, duration_s, started_at
from agentrl.v_trajectories
where :run::text is null or run = (select agentrl.find_run_v1(:run))
order by v_trajectories.trajectory desc
limit :limit::bigint;
