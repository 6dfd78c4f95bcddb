-- Writing a running episode: fenced, idempotent, gap-free.

-- The live row for a segment that is not the next one, its lease renewed: the segment must have been stored before, or it is an error
-- of its own.
create or replace function agentrl.stored_before_v1(trajectory_ uuid, fence_ bigint, seg_ bigint) returns agentrl.live
language plpgsql as $$
declare
  l agentrl.live;
begin
  select * into l from agentrl.live where trajectory = trajectory_ and fence = fence_ for no key update;
  if not found then
    perform agentrl.fail_v1('AR001', format('segment %s: %s is no longer open under fence %s: stop this episode', seg_,
                                            agentrl.named_v1(trajectory_), fence_));
  end if;
  if seg_ > l.next_seg then
    perform agentrl.fail_v1('AR002', format('segment %s of %s arrived, but segment %s is missing: send from there',
                                            seg_, agentrl.named_v1(trajectory_), l.next_seg), l.next_seg);
  end if;
  update agentrl.live set lease_until = clock_timestamp() + lease where trajectory = trajectory_;
  return l;
end $$;

-- The distinct versions in a buffer of one version per token, ascending.
create or replace function agentrl.distinct_versions_v1(token_versions_ bytea) returns bigint[] language sql immutable strict as $$
  select array_agg(distinct v::bigint order by v::bigint) from unnest(agentrl.i4(token_versions_)) v
$$;

-- The union of two sets of versions, ascending.
create or replace function agentrl.merge_v1(a bigint[], b bigint[]) returns bigint[] language sql immutable strict as $$
  select array_agg(distinct v order by v) from unnest(a || b) v
$$;

-- Stores one turn and renews the lease. True: stored now; false: the same body was stored before, in whatever time.
create or replace function agentrl.write_segment_v2(
  trajectory_ uuid, fence_ bigint, seg_ bigint, context_ bigint, version_ bigint, token_versions_ bytea,
  n_obs_ bigint, n_act_ bigint, ids_ bytea, logprobs_ bytea, loss_mask_ bytea, unit_starts_ bytea, finish_reason_ text,
  observation_text_ text, action_text_ text, action_raw_ bytea, tool_calls_ text, tool_results_ text, tool_raw_ bytea[], exact_ bytea,
  compacted_ text, reward_ float8, queue_s_ float8, generate_s_ float8, tool_s_ float8) returns boolean language plpgsql as $$
declare
  l record;
  versions_ bigint[] := case when token_versions_ is not null then agentrl.distinct_versions_v1(token_versions_)
                             when version_ is not null then array[version_] else '{}' end;
begin
  update agentrl.live
  set lease_until = clock_timestamp() + lease, next_seg = greatest(next_seg, seg_ + 1), n_tokens = n_tokens + n_obs_ + n_act_,
      n_actions = n_actions + n_act_,
      versions = case when versions @> versions_ then versions else agentrl.merge_v1(versions, versions_) end
  where trajectory = trajectory_ and fence = fence_ and next_seg = seg_ returning run, start_version into l;
  if not found then
    l := agentrl.stored_before_v1(trajectory_, fence_, seg_);
    perform 1 from agentrl.segment s
    where s.run = l.run and s.start_version = l.start_version and s.trajectory = trajectory_ and s.seg = seg_
      and (s.context, s.versions, s.token_versions, s.n_obs, s.n_act, s.ids, s.logprobs, s.loss_mask, s.unit_starts,
           s.finish_reason, s.observation_text, s.action_text, s.action_raw, s.tool_calls::text, s.tool_results::text, s.tool_raw,
           s.exact, s.compacted::text, s.reward)
        is not distinct from
          (context_, versions_, token_versions_, n_obs_, n_act_, ids_, logprobs_, loss_mask_, unit_starts_, finish_reason_,
           observation_text_, action_text_, action_raw_, tool_calls_, tool_results_, tool_raw_, exact_, compacted_, reward_);
    if not found then
      perform agentrl.fail_v1('AR003', format('segment %s of %s is stored with another body', seg_, agentrl.named_v1(trajectory_)));
    end if;
    return false;
  end if;
  if (select count(*) from agentrl.policy_version where run = l.run and version = any (versions_)) <> cardinality(versions_) then
    perform agentrl.fail_v1('AR005', format('segment %s of %s carries policy versions %s, of which some have no row',
                                            seg_, agentrl.named_v1(trajectory_), versions_));
  end if;
  insert into agentrl.segment (
    run, start_version, trajectory, seg, context, versions, token_versions, n_obs, n_act, ids, logprobs, loss_mask,
    unit_starts, finish_reason, observation_text, action_text, action_raw, tool_calls, tool_results, tool_raw, exact, compacted, reward,
    queue_s, generate_s, tool_s)
  values (
    l.run, l.start_version, trajectory_, seg_, context_, versions_, token_versions_, n_obs_, n_act_, ids_, logprobs_, loss_mask_,
    unit_starts_, finish_reason_, observation_text_, action_text_, action_raw_, tool_calls_::json, tool_results_::json, tool_raw_, exact_,
    compacted_::json, reward_, queue_s_, generate_s_, tool_s_);
  return true;
end $$;

-- Renews live rows; returns those that are still the caller's. A row that is locked is just being written, which renews it, so
-- it is not waited for.
create or replace function agentrl.renew_v1(worker_ text, trajectories_ uuid[], fences_ bigint[]) returns setof uuid language sql as $$
  with mine as (
    select l.trajectory from agentrl.live l join unnest(trajectories_, fences_) m (id, fence)
      on l.trajectory = m.id and l.fence = m.fence and l.worker = worker_
    for no key update of l skip locked)
  update agentrl.live l set lease_until = clock_timestamp() + l.lease from mine where l.trajectory = mine.trajectory;
  select l.trajectory from agentrl.live l join unnest(trajectories_, fences_) m (id, fence)
    on l.trajectory = m.id and l.fence = m.fence and l.worker = worker_
$$;

-- Leaves an episode to another worker; false: this run continues none, nothing of it is stored, an agent outside drives it (only
-- that one could go on), or it is not the caller's.
create or replace function agentrl.park_v1(trajectory_ uuid, fence_ bigint) returns boolean language plpgsql as $$
declare
  l agentrl.live;
begin
  select l0.* into l from agentrl.live l0 join agentrl.run r on r.id = l0.run and r.resume_partial
  join agentrl.trajectory t on t.run = l0.run and t.start_version = l0.start_version and t.id = l0.trajectory
    and t.sandbox is distinct from 'outside'
  where l0.trajectory = trajectory_ and l0.fence = fence_ and l0.purpose = 'train' and l0.next_seg > 0 and l0.parked_at is null
  for update of l0;
  if not found then
    return false;
  end if;
  perform agentrl.park_live_v1(l, false, l.worker, 'its worker was stopped');
  return true;
end $$;

-- The answer to a completion whose live row is gone: the first result when it is a repetition, else fenced.
create or replace function agentrl.completed_before_v1(
  trajectory_ uuid, fence_ bigint, n_segments_ bigint, termination_ text, outcome_ text) returns text language plpgsql as $$
declare
  t agentrl.trajectory;
begin
  select * into t from agentrl.trajectory where id = trajectory_ and fence = fence_ and ended_to is not null;
  if not found then
    perform agentrl.fail_v1('AR001', format('%s is no longer open under fence %s: stop this episode',
                                            agentrl.named_v1(trajectory_), fence_));
  end if;
  if (t.termination, t.outcome) is distinct from (termination_, outcome_)
     or (t.complete and t.n_segments is distinct from n_segments_) then
    perform agentrl.fail_v1('AR007', format('%s was completed before as %s/%s with %s segments', agentrl.named_v1(trajectory_),
                                            t.termination, t.outcome, t.n_segments));
  end if;
  return t.ended_to;
end $$;

-- Where an ended episode goes. The caller holds its group row.
create or replace function agentrl.place_of_end_v1(l agentrl.live, outcome_ text, has_reward boolean) returns text language sql stable as $$
  select case when outcome_ = 'infrastructure' or (l.n_actions = 0 and l.purpose = 'train') then 'dropped'
              when outcome_ = 'graded' and not has_reward then 'grade_job'
              when l.purpose = 'eval' then 'evaluated'
              when l.grp is null then 'ready'
              when (select count(*) from agentrl.graded where run = l.run and grp = l.grp) + 1
                = (select size from agentrl.grp where id = l.grp) then 'ready'
              else 'graded' end
$$;

-- Moves a just ended episode on. It passes grade_job and graded as events only: no other transaction could see the rows.
create or replace function agentrl.hand_over_v1(l agentrl.live, t agentrl.trajectory, evidence_ bytea default null) returns void
language plpgsql as $$
declare
  graded_ constant boolean := t.outcome = 'graded';
  why_ constant text := case when graded_ then 'graded in the episode' else 'ended by the policy' end;
  before constant text := case when graded_ then 'grade_job' else 'live' end;
  after_ constant text := case when l.purpose = 'eval' then 'evaluated' else 'graded' end;
begin
  insert into agentrl.event (run, trajectory, from_place, to_place, fence, actor, why)
  select l.run, l.trajectory, e.from_place, e.to_place, l.fence, l.worker, e.why
  from (values ('live', 'grade_job', 'completed', graded_), (before, after_, why_, t.ended_to <> 'grade_job'),
               ('graded', 'ready', 'no group to wait for', t.ended_to = 'ready' and l.grp is null)
       ) e (from_place, to_place, why, happened) where happened;
  if t.ended_to = 'grade_job' then
    insert into agentrl.grade_job (trajectory, run, start_version, purpose, grp, evidence)
    values (l.trajectory, l.run, l.start_version, l.purpose, l.grp, evidence_);
  elsif t.ended_to = 'evaluated' then
    insert into agentrl.evaluated (run, trajectory, start_version, evaluation)
    values (l.run, l.trajectory, l.start_version, t.evaluation);
  elsif l.grp is null then
    insert into agentrl.ready (run, item, trajectories, start_versions, n_traj, n_tokens, oldest_update, oldest_start)
    values (l.run, l.trajectory, array[l.trajectory], array[l.start_version], 1, l.n_tokens,
            agentrl.oldest_update_v1(l.run, l.versions), t.started_at);
  else
    insert into agentrl.graded (trajectory, run, start_version, grp) values (l.trajectory, l.run, l.start_version, l.grp);
    perform agentrl.settle_group_v1(l.run, l.grp, l.fence, l.worker);
  end if;
end $$;

-- Ends an episode: checks that all announced segments are there, writes the end and moves it.
create or replace function agentrl.complete_v2(
  trajectory_ uuid, fence_ bigint, n_segments_ bigint, termination_ text, outcome_ text, error_ text, retryable_ boolean,
  sandbox_ text, evidence_ bytea,
  reward_ float8, success_ boolean, grader_ text, grader_version_ text, detail_ text, duration_s_ float8)
returns text language plpgsql as $$
declare
  l agentrl.live;
  t agentrl.trajectory;
begin
  select * into l from agentrl.live where trajectory = trajectory_ and fence = fence_;
  if found then
    perform 1 from agentrl.run where id = l.run for key share;
    if l.grp is not null then
      perform 1 from agentrl.grp where id = l.grp for update;
    end if;
    delete from agentrl.live where trajectory = trajectory_ and fence = fence_ returning * into l;
  end if;
  if not found then
    return agentrl.completed_before_v1(trajectory_, fence_, n_segments_, termination_, outcome_);
  end if;
  if outcome_ <> 'infrastructure' and l.next_seg <> n_segments_ then
    perform agentrl.fail_v1('AR004', format('%s announced %s segments, but %s are stored: send from segment %s',
                                            agentrl.named_v1(trajectory_), n_segments_, l.next_seg, l.next_seg), l.next_seg);
  end if;
  update agentrl.trajectory
  set ended_at = clock_timestamp(), complete = (l.next_seg = n_segments_), termination = termination_, outcome = outcome_,
      ended_to = agentrl.place_of_end_v1(l, outcome_, reward_ is not null), error = error_, n_segments = l.next_seg,
      n_tokens = l.n_tokens, n_actions = l.n_actions, versions = l.versions,
      sandbox = coalesce(sandbox_, sandbox)
  where run = l.run and start_version = l.start_version and id = trajectory_ returning * into t;
  if reward_ is not null then
    insert into agentrl.reward (run, trajectory, grader, grader_version, value, success, detail, duration_s)
    values (l.run, trajectory_, grader_, grader_version_, reward_, success_, detail_::json, duration_s_);
  end if;
  if outcome_ = 'infrastructure' then
    perform agentrl.end_seat_v1(
      l.run, l.start_version, trajectory_, l.grp, 'live', case when termination_ = 'aborted' then 'cancelled' else 'infrastructure' end,
      error_, termination_ <> 'aborted', retryable_, l.fence, l.worker);
  elsif t.ended_to = 'dropped' then
    perform agentrl.end_seat_v1(l.run, l.start_version, trajectory_, l.grp, 'live', 'zero_action', 'no action token was sampled',
                                true, l.grp is not null, l.fence, l.worker);
  else
    perform agentrl.hand_over_v1(l, t, evidence_);
  end if;
  return t.ended_to;
end $$;
