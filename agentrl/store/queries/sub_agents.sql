-- name: sub_agents
-- Sub-agents, newest episodes first: who started them in which turn, and the verdict that counts for each.
-- limit: 100
select run_name as run, root, parent, parent_seg, seat, trajectory, environment, task_id, termination, segments, actions, reward,
       own_verdict
from agentrl.v_sub_agents
where :run::text is null or run = (select agentrl.find_run_v1(:run))
order by root desc, seat
limit :limit::bigint;
