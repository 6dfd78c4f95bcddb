-- An example of each view for people, as docs/reference/queries.md shows it: a line with its name and the question, then the SQL.

-- v_runs: Which runs wait for their trainer?
select run_name, status, step, policy_version, trainer, running, ready, leased from agentrl.v_runs
where running + ready > 0 or trainer is not null or status <> 'running'
order by created_at desc
limit 3;

-- v_conservation: Do the books of every run balance?
select run_name, created, consumed, dropped, created - consumed - dropped as in_work, holds
from agentrl.v_conservation
order by run
limit 3;

-- v_trajectories: Which training episodes were the longest failures?
select trajectory, task_id, place, termination, reward, segments, actions, duration_s from agentrl.v_trajectories
where run = agentrl.find_run_v1('latest') and purpose = 'train' and not success
order by actions desc, trajectory
limit 3;

-- v_stuck: What waits longest, by place?
select place, why, count(*) as trajectories, max(waiting_s) as longest_s from agentrl.v_stuck
where run = agentrl.find_run_v1('latest')
group by place, why
order by longest_s desc
limit 3;

-- v_dropped_by_reason: What share of the dropped comes from each reason?
select reason, from_place, trajectories, example from agentrl.v_dropped_by_reason
where run = agentrl.find_run_v1('latest')
order by trajectories desc
limit 3;

-- v_staleness: In which steps was the data oldest?
select step, trajectories, mean_lag, p95_lag, max_lag, lag_bound, masked_tokens from agentrl.v_staleness
where run = agentrl.find_run_v1('latest')
order by mean_lag desc, step
limit 3;

-- v_reward_by_task: Which tasks are never solved?
select task_id, episodes, graded, mean_reward, spread, success from agentrl.v_reward_by_task
where run = agentrl.find_run_v1('latest') and purpose = 'train'
order by success nulls first, mean_reward, task_id
limit 3;

-- v_groups: Which groups lose seats?
select grp, task_id, state, size, attempts, failed, mean_reward, step from agentrl.v_groups
where run = agentrl.find_run_v1('latest')
order by failed desc, created_at
limit 3;

-- v_zero_variance: Which steps trained groups that teach nothing?
select step, count(*) as groups, avg(reward) as mean_reward from agentrl.v_zero_variance
where run = agentrl.find_run_v1('latest')
group by step
order by step
limit 3;

-- v_tool_errors: Which tool fails most often?
select tool, calls, errors, error_share, mean_s, example from agentrl.v_tool_errors
where run = agentrl.find_run_v1('latest')
order by error_share desc nulls last
limit 3;

-- v_stop_reasons: How do training episodes end?
select termination, outcome, trajectories, share, mean_segments, mean_reward from agentrl.v_stop_reasons
where run = agentrl.find_run_v1('latest') and purpose = 'train'
order by trajectories desc
limit 3;

-- v_token_mismatch: Does anything stored disagree with itself? No rows: nothing does.
select trajectory, seg, problem from agentrl.v_token_mismatch
where run = agentrl.find_run_v1('latest')
limit 3;

-- v_step_timing: In which steps did the trainer wait most?
select step, wall_s, wait_s, wait_share, train_s, tokens_per_s, data_age_s from agentrl.v_step_timing
where run = agentrl.find_run_v1('latest')
order by wait_s desc nulls last
limit 3;

-- v_workers: Who is silent?
select worker, role, holds, last_seen, silent_s, lapsed from agentrl.v_workers
where run = agentrl.find_run_v1('latest')
order by silent_s desc
limit 3;

-- v_grader_disagreement: Which verdicts were changed after the trajectory was trained?
select trajectory, task_id, graders, first_reward, newest_reward, step
from agentrl.v_grader_disagreement
where run = agentrl.find_run_v1('latest') and step is not null
limit 3;

-- v_sub_agents: How do sub-agents end, and what do they earn?
select environment, termination, count(*) as sub_agents, avg(actions)::int as actions, avg(reward) as mean_reward
from agentrl.v_sub_agents
where run = agentrl.find_run_v1('latest')
group by environment, termination
order by sub_agents desc
limit 3;

-- v_versions: What became of the newest versions?
select version, updates, status, explanation, publish_s, loaded_s from agentrl.v_versions
where run = agentrl.find_run_v1('latest')
order by branch desc, updates desc, version desc
limit 3;

-- v_engines: Which engine is behind?
select engine, version, behind, behind_s, seconds, attempt, failed, last_error from agentrl.v_engines
where run = agentrl.find_run_v1('latest')
order by behind desc
limit 3;

-- v_alerts: Which runs are likely to be a waste of time just now?
select run_name, alert, severity, first_step, steps, value, bound, what from agentrl.v_alerts
where active
order by severity, run_name, alert
limit 3;
