-- Sub-agents: trajectories that are part of an episode. They have no place: they are where their episode is.

-- Begins a sub-agent of a running episode, in the transaction that stores the turn which started it. Its live row is gone again
-- before anybody else could see it.
create or replace function agentrl.begin_sub_agent_v1(
  root_ uuid, fence_ bigint, trajectory_ uuid, parent_ uuid, parent_seg_ bigint, seat_ bigint, task_id_ text, payload_ text,
  seed_ bigint, environment_ text, environment_version_ text, duration_s_ float8) returns void language plpgsql as $$
declare
  l agentrl.live;
begin
  select * into l from agentrl.live where trajectory = root_ and fence = fence_;
  if not found then
    perform agentrl.fail_v1('AR001', format('trajectory %s is no longer open under fence %s: stop this episode', root_, fence_));
  end if;
  insert into agentrl.trajectory (
    run, start_version, id, purpose, evaluation, split, task_idx, task_id, cursor, seat, attempt, failures, parent, parent_seg, root,
    payload, seed, worker, fence, model, tokenizer_hash, template_hash, engine, engine_version, engine_dtype, sampling,
    logprob_kind, environment, environment_version, sandbox, origin, started_at)
  select t.run, t.start_version, trajectory_, t.purpose, t.evaluation, t.split, t.task_idx, task_id_, t.cursor, seat_, t.attempt,
         t.failures, parent_, parent_seg_, root_, payload_::json, seed_, t.worker, fence_, t.model, t.tokenizer_hash, t.template_hash,
         t.engine, t.engine_version, t.engine_dtype, t.sampling, t.logprob_kind, environment_, environment_version_, t.sandbox,
         t.origin, clock_timestamp() - make_interval(secs => duration_s_)
  from agentrl.trajectory t where t.run = l.run and t.start_version = l.start_version and t.id = root_;
  insert into agentrl.live (trajectory, run, start_version, purpose, worker, fence, lease, lease_until)
  values (trajectory_, l.run, l.start_version, l.purpose, l.worker, fence_, l.lease, l.lease_until);
end $$;

-- Ends it; its versions count for the episode's lag.
create or replace function agentrl.end_sub_agent_v1(
  root_ uuid, fence_ bigint, trajectory_ uuid, termination_ text, outcome_ text, reward_ float8, success_ boolean, grader_ text,
  grader_version_ text, detail_ text, duration_s_ float8) returns void language plpgsql as $$
declare
  l agentrl.live;
begin
  delete from agentrl.live where trajectory = trajectory_ and fence = fence_ returning * into l;
  update agentrl.trajectory
  set ended_at = clock_timestamp(), complete = true, termination = termination_, outcome = outcome_, n_segments = l.next_seg,
      n_tokens = l.n_tokens, n_actions = l.n_actions, versions = l.versions
  where run = l.run and start_version = l.start_version and id = trajectory_;
  if reward_ is not null then
    perform agentrl.add_reward_v1(l.run, trajectory_, reward_, success_, grader_, grader_version_, detail_, duration_s_);
  end if;
  update agentrl.live set versions = agentrl.merge_v1(versions, l.versions)
  where trajectory = root_ and fence = fence_ and not versions @> l.versions;
end $$;

-- A verdict for a sub-agent that has none, from the reward code of its episode, in the transaction that completes the episode.
-- Nothing happens when that was done before: a repeated completion gets its first result.
create or replace function agentrl.judge_sub_agent_v1(
  root_ uuid, fence_ bigint, trajectory_ uuid, reward_ float8, success_ boolean, grader_ text, grader_version_ text, detail_ text,
  duration_s_ float8) returns void language plpgsql as $$
declare
  l agentrl.live;
begin
  select * into l from agentrl.live where trajectory = root_ and fence = fence_;
  if not found then
    return;
  end if;
  update agentrl.trajectory set outcome = 'graded'
  where run = l.run and start_version = l.start_version and id = trajectory_ and root = root_ and outcome is null;
  if not found then
    perform agentrl.fail_v1('AR007', format('trajectory %s is no sub-agent without a verdict of %s: it can''t be given one',
                                            trajectory_, agentrl.named_v1(root_)));
  end if;
  perform agentrl.add_reward_v1(l.run, trajectory_, reward_, success_, grader_, grader_version_, detail_, duration_s_);
end $$;

-- The newest verdict that counts for a trajectory: its own, or that of the nearest parent that has one.
create or replace function agentrl.verdict_v1(run_ bigint, trajectory_ uuid) returns bigint language plpgsql stable as $$
declare
  found_ bigint;
  t record;
begin
  loop
    select max(id) into found_ from agentrl.reward where trajectory = trajectory_;
    select parent, outcome into t from agentrl.trajectory where run = run_ and id = trajectory_;
    exit when found_ is not null or t.parent is null or t.outcome is not null;
    trajectory_ := t.parent;
  end loop;
  return found_;
end $$;
