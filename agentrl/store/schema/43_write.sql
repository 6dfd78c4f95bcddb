-- Writing a running episode: fenced, idempotent, gap-free.

-- Stores one turn and renews the lease. True: stored now; false: the same body was stored before.
create function agentrl.write_segment_v1(
  trajectory_ uuid, fence_ bigint, seg_ bigint, hash_ bytea, context_ bigint, version_ bigint, token_versions_ bytea,
  n_obs_ bigint, n_act_ bigint, ids_ bytea, logprobs_ bytea, loss_mask_ bytea, finish_reason_ text, observation_text_ text,
  action_text_ text, action_raw_ bytea, tool_calls_ text, tool_results_ text, tool_raw_ bytea[], exact_ bytea, reward_ float8,
  queue_s_ float8, generate_s_ float8, tool_s_ float8) returns boolean language plpgsql as $$
declare
  l agentrl.live;
  versions_ bigint[];
  known bytea;
begin
  select * into l from agentrl.live where trajectory = trajectory_ and fence = fence_ for no key update;
  if not found then
    perform agentrl.fail_v1('AR001', format('trajectory %s is no longer open under fence %s: stop this episode', trajectory_, fence_));
  end if;
  if seg_ > l.next_seg then
    perform agentrl.fail_v1('AR002', format('segment %s of trajectory %s arrived, but segment %s is missing: send from there',
                                            seg_, trajectory_, l.next_seg), l.next_seg);
  end if;
  if seg_ < l.next_seg then
    select body_hash into known from agentrl.segment
    where run = l.run and start_version = l.start_version and trajectory = trajectory_ and seg = seg_;
    if known <> hash_ then
      perform agentrl.fail_v1('AR003', format('segment %s of trajectory %s is stored with another body', seg_, trajectory_));
    end if;
    update agentrl.live set lease_until = clock_timestamp() + lease where trajectory = trajectory_;
    return false;
  end if;
  if token_versions_ is not null then
    select array_agg(distinct v order by v) into versions_ from unnest(agentrl.i4(token_versions_)) v;
  else
    versions_ := case when version_ is null then '{}' else array[version_] end;
  end if;
  if (select count(*) from agentrl.policy_version where run = l.run and version = any (versions_)) <> cardinality(versions_) then
    perform agentrl.fail_v1('AR005', format('segment %s of trajectory %s carries policy versions %s, of which some have no row',
                                            seg_, trajectory_, versions_));
  end if;
  insert into agentrl.segment (
    run, start_version, trajectory, seg, context, versions, token_versions, n_obs, n_act, ids, logprobs, loss_mask,
    finish_reason, observation_text, action_text, action_raw, tool_calls, tool_results, tool_raw, exact, reward, queue_s,
    generate_s, tool_s, body_hash)
  values (
    l.run, l.start_version, trajectory_, seg_, context_, versions_, token_versions_, n_obs_, n_act_, ids_, logprobs_, loss_mask_,
    finish_reason_, observation_text_, action_text_, action_raw_, tool_calls_::json, tool_results_::json, tool_raw_, exact_,
    reward_, queue_s_, generate_s_, tool_s_, hash_);
  update agentrl.live set lease_until = clock_timestamp() + lease, next_seg = greatest(next_seg, seg_ + 1)
  where trajectory = trajectory_;
  return true;
end $$;

-- Renews live rows; returns those that are still the caller's.
create function agentrl.renew_v1(worker_ text, trajectories_ uuid[], fences_ bigint[]) returns setof uuid language sql as $$
  update agentrl.live l set lease_until = clock_timestamp() + l.lease
  from unnest(trajectories_, fences_) m (id, fence)
  where l.trajectory = m.id and l.fence = m.fence and l.worker = worker_
  returning l.trajectory
$$;

-- The answer to a completion whose live row is gone: the first result when it is a repetition, else fenced.
create function agentrl.completed_before_v1(
  trajectory_ uuid, fence_ bigint, n_segments_ bigint, termination_ text, outcome_ text) returns text language plpgsql as $$
declare
  t agentrl.trajectory;
begin
  select * into t from agentrl.trajectory where id = trajectory_ and fence = fence_ and ended_to is not null;
  if not found then
    perform agentrl.fail_v1('AR001', format('trajectory %s is no longer open under fence %s: stop this episode', trajectory_, fence_));
  end if;
  if (t.termination, t.outcome) is distinct from (termination_, outcome_)
     or (t.complete and t.n_segments is distinct from n_segments_) then
    perform agentrl.fail_v1('AR007', format('trajectory %s was completed before as %s/%s with %s segments', trajectory_,
                                            t.termination, t.outcome, t.n_segments));
  end if;
  return t.ended_to;
end $$;

-- Moves a just ended episode through grade_job and graded. Passing places are only events: no other transaction could see them.
create function agentrl.hand_over_v1(l agentrl.live, evaluation_ bigint, graded_ boolean, has_reward boolean) returns text
language plpgsql as $$
begin
  if graded_ then
    perform agentrl.note_v1(l.run, l.trajectory, 'live', 'grade_job', l.fence, l.worker, 'completed');
    if not has_reward then
      insert into agentrl.grade_job (trajectory, run, start_version, purpose, grp)
      values (l.trajectory, l.run, l.start_version, l.purpose, l.grp);
      return 'grade_job';
    end if;
  end if;
  if l.purpose = 'eval' then
    insert into agentrl.evaluated (run, trajectory, start_version, evaluation)
    values (l.run, l.trajectory, l.start_version, evaluation_);
    perform agentrl.note_v1(l.run, l.trajectory, case when graded_ then 'grade_job' else 'live' end, 'evaluated', l.fence,
                            l.worker, case when graded_ then 'graded in the episode' else 'ended by the policy' end);
    return 'evaluated';
  end if;
  perform agentrl.note_v1(l.run, l.trajectory, case when graded_ then 'grade_job' else 'live' end, 'graded', l.fence, l.worker,
                          case when graded_ then 'graded in the episode' else 'ended by the policy' end);
  if l.grp is null then
    perform agentrl.to_ready_v1(l.run, l.trajectory, array[l.trajectory], array[l.start_version], 0, clock_timestamp(), 'graded',
                                l.fence, l.worker, 'no group to wait for');
    return 'ready';
  end if;
  insert into agentrl.graded (trajectory, run, start_version, grp) values (l.trajectory, l.run, l.start_version, l.grp);
  perform agentrl.settle_group_v1(l.run, l.grp, l.fence, l.worker);
  return case when exists (select 1 from agentrl.graded where trajectory = l.trajectory) then 'graded'
              when exists (select 1 from agentrl.dropped where run = l.run and trajectory = l.trajectory) then 'dropped'
              else 'ready' end;
end $$;

-- Ends an episode: checks that all announced segments are there, writes the end and moves it.
create function agentrl.complete_v1(
  trajectory_ uuid, fence_ bigint, n_segments_ bigint, termination_ text, outcome_ text, error_ text, retryable_ boolean,
  reward_ float8, success_ boolean, grader_ text, grader_version_ text, detail_ text, duration_s_ float8)
returns text language plpgsql as $$
declare
  l agentrl.live;
  s record;
  evaluation_ bigint;
  place text;
begin
  select * into l from agentrl.live where trajectory = trajectory_ and fence = fence_;
  if found then
    perform agentrl.hold_run_v1(l.run);
    if l.grp is not null then
      perform 1 from agentrl.grp where id = l.grp for update;
    end if;
    delete from agentrl.live where trajectory = trajectory_ and fence = fence_ returning * into l;
  end if;
  if not found then
    return agentrl.completed_before_v1(trajectory_, fence_, n_segments_, termination_, outcome_);
  end if;
  if outcome_ <> 'infrastructure' and l.next_seg <> n_segments_ then
    perform agentrl.fail_v1('AR004', format('trajectory %s announced %s segments, but %s are stored: send from segment %s',
                                            trajectory_, n_segments_, l.next_seg, l.next_seg), l.next_seg);
  end if;
  select coalesce(sum(n_obs + n_act), 0) as n_tokens, coalesce(sum(n_act), 0) as n_actions,
         coalesce((select array_agg(distinct v order by v) from agentrl.segment x, unnest(x.versions) v
                   where x.run = l.run and x.start_version = l.start_version and x.trajectory = trajectory_), '{}') as versions
  into s from agentrl.segment where run = l.run and start_version = l.start_version and trajectory = trajectory_;
  update agentrl.trajectory
  set ended_at = clock_timestamp(), complete = (l.next_seg = n_segments_), termination = termination_, outcome = outcome_,
      error = error_, n_segments = l.next_seg, n_tokens = s.n_tokens, n_actions = s.n_actions, versions = s.versions
  where run = l.run and start_version = l.start_version and id = trajectory_ returning evaluation into evaluation_;
  if reward_ is not null then
    insert into agentrl.reward (run, trajectory, grader, grader_version, value, success, detail, duration_s)
    values (l.run, trajectory_, grader_, grader_version_, reward_, success_, detail_::json, duration_s_);
  end if;
  if outcome_ = 'infrastructure' then
    perform agentrl.end_seat_v1(
      l.run, l.start_version, trajectory_, l.grp, 'live', case when termination_ = 'aborted' then 'cancelled' else 'infrastructure' end,
      error_, termination_ <> 'aborted', retryable_, l.fence, l.worker);
    place := 'dropped';
  elsif s.n_actions = 0 and l.purpose = 'train' then
    perform agentrl.end_seat_v1(l.run, l.start_version, trajectory_, l.grp, 'live', 'zero_action', 'no action token was sampled',
                                true, l.grp is not null, l.fence, l.worker);
    place := 'dropped';
  else
    place := agentrl.hand_over_v1(l, evaluation_, outcome_ = 'graded', reward_ is not null);
  end if;
  update agentrl.trajectory set ended_to = place where run = l.run and start_version = l.start_version and id = trajectory_;
  return place;
end $$;
