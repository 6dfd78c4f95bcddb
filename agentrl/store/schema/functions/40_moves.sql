-- What all moves share. Lock order everywhere: run (shared), admission (advisory), group, then the rows of the places.

-- Raises a typed error; the client maps the code (class AR) to its exception.
create or replace function agentrl.fail_v1(code text, msg text, next_seg bigint default null) returns void language plpgsql stable as $$
begin
  raise exception using errcode = code, message = msg, detail = coalesce(next_seg::text, '');
end $$;

-- A trajectory and its run, as errors name them.
create or replace function agentrl.named_v1(trajectory_ uuid) returns text language sql stable as $$
  select coalesce((select format('trajectory %s of run "%s"', t.id, r.name)
                   from agentrl.trajectory t join agentrl.run r on r.id = t.run where t.id = trajectory_ limit 1),
                  format('trajectory %s', trajectory_))
$$;

-- When the server started; leases of before are counted from there.
create or replace function agentrl.server_started_v1() returns timestamptz language sql stable as $$
  select pg_postmaster_start_time()
$$;

-- Whether a lease has lapsed. A server that was down must not reap living workers: every lease lasts at least until one lease
-- after the server's start.
create or replace function agentrl.lapsed_v1(until timestamptz, lease interval) returns boolean language sql stable as $$
  select greatest(until, agentrl.server_started_v1() + lease) < now()
$$;

-- Locks the run row for the length of the transaction so that no trainer can start meanwhile. It is the weakest lock that does so: a
-- trainer that renews its lease waits for nobody, however many moves overlap and however long an import takes.
create or replace function agentrl.hold_run_v1(run_ bigint) returns agentrl.run language plpgsql as $$
declare
  r agentrl.run;
begin
  select * into r from agentrl.run where id = run_ for key share;
  if not found then
    perform agentrl.fail_v1('AR009', format('there is no run with id %s', run_));
  end if;
  return r;
end $$;

-- Holds the run row and checks that the caller is its trainer.
create or replace function agentrl.hold_trainer_v1(run_ bigint, fence_ bigint) returns agentrl.run language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_run_v1(run_);
begin
  if r.trainer_fence is distinct from fence_ or r.trainer_owner is null then
    perform agentrl.fail_v1('AR001', format(
      'trainer fence %s of run "%s" is no longer valid (now: fence %s, held by %s): this trainer must exit',
      fence_, r.name, r.trainer_fence, coalesce(r.trainer_owner, 'nobody')));
  end if;
  return r;
end $$;

-- Where the live history stands.
create or replace function agentrl.head_v1(run_ bigint, out step bigint, out updates bigint) language sql stable as $$
  select coalesce(max(s.step), 0), coalesce(max(s.updates), 0) from (
    select step, updates from agentrl.step where run = run_ and abandoned_by is null order by step desc limit 1) s
$$;

-- The number that the lag bound is counted from, for a trajectory's token versions: that of its oldest token, or of its newest one
-- where older ones are left out of the loss.
create or replace function agentrl.oldest_update_v1(run_ bigint, versions_ bigint[]) returns bigint language sql stable as $$
  select case (select staleness_mode from agentrl.run where id = run_) when 'segment_mask' then max(effective_update)
         else min(effective_update) end
  from agentrl.policy_version where run = run_ and version = any (versions_)
$$;

-- The lag of an item's oldest token that is in the loss.
create or replace function agentrl.item_lag_v1(
  r agentrl.run, updates_ bigint, oldest_update_ bigint, trajectories_ uuid[], start_versions_ bigint[], source_ bigint)
returns bigint language sql stable as $$
  select case when r.staleness_mode = 'trajectory' or source_ is not null then updates_ - oldest_update_ else (
    select max(updates_ - v.effective_update) from unnest(trajectories_, start_versions_) m (id, start_version)
    join agentrl.trajectory t on t.run = r.id and t.start_version = m.start_version and t.id = m.id
    join agentrl.policy_version v on v.run = r.id and v.version = any (t.versions)
    where updates_ - v.effective_update <= r.lag_bound) end
$$;

-- Training trajectories that are opened and neither consumed nor dropped; of an open group not more than will be trained, since its
-- redundant members never are.
create or replace function agentrl.outstanding_v1(run_ bigint) returns bigint language sql stable as $$
  with open_ as (
    select grp, count(*) as n from (
      select grp from agentrl.live where run = run_ and purpose = 'train'
      union all select grp from agentrl.grade_job where run = run_ and purpose = 'train'
      union all select grp from agentrl.graded where run = run_) x
    group by grp
  )
  select (select coalesce(sum(least(o.n, g.size)), 0) from open_ o left join agentrl.grp g on g.id = o.grp)::bigint
       + (select coalesce(sum(n_traj), 0) from agentrl.ready where run = run_)::bigint
       + (select coalesce(sum(n_traj), 0) from agentrl.lease where run = run_)::bigint
$$;

-- A new key that sorts by time: a UUID of version 7.
create or replace function agentrl.new_id_v1() returns uuid language sql volatile as $$
  select encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
    placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6), 52, 1), 53, 1),
    'hex')::uuid
$$;

-- Records a move.
create or replace function agentrl.note_v1(run_ bigint, trajectory_ uuid, from_ text, to_ text, fence_ bigint, actor_ text, why_ text)
returns void language sql as $$
  insert into agentrl.event (run, trajectory, from_place, to_place, fence, actor, why)
  values (run_, trajectory_, from_, to_, fence_, actor_, why_)
$$;

-- Puts a trajectory whose row was just deleted from another place into dropped. A source names the run that created it. The
-- trajectory itself may be gone: retention removes what only an abandoned branch could still want.
create or replace function agentrl.drop_v1(
  run_ bigint, start_version_ bigint, trajectory_ uuid, from_ text, reason_ text, detail_ text, charged_ boolean,
  retryable_ boolean, fence_ bigint, actor_ text, source_ bigint default null) returns void language plpgsql as $$
begin
  insert into agentrl.dropped (run, trajectory, start_version, purpose, evaluation, grp, from_place, reason, detail, charged,
                               retryable, source)
  select run_, trajectory_, start_version_, coalesce(t.purpose, 'train'), t.evaluation, case when source_ is null then t.grp end,
         from_, reason_, detail_, charged_, retryable_ and (not charged_ or t.failures + 1 < r.max_attempts), source_
  from agentrl.run r
  left join agentrl.trajectory t on t.run = r.id and t.start_version = start_version_ and t.id = trajectory_
  where r.id = coalesce(source_, run_);
  perform agentrl.note_v1(run_, trajectory_, from_, 'dropped', fence_, actor_, concat_ws(': ', reason_, detail_));
end $$;

-- Drops every trajectory of an item whose row was just deleted from ready, lease or consumed.
create or replace function agentrl.drop_item_v1(
  run_ bigint, trajectories_ uuid[], start_versions_ bigint[], from_ text, reason_ text, detail_ text, fence_ bigint,
  actor_ text, source_ bigint) returns void language sql as $$
  select agentrl.drop_v1(run_, m.start_version, m.id, from_, reason_, detail_, false, false, fence_, actor_, source_)
  from unnest(trajectories_, start_versions_) m (id, start_version)
$$;

-- Inserts an item into ready. The caller holds the run row: a grade that read the old branch can't land after a resume. Tokens
-- of another run (source) have no lag in this one: they count from its root.
create or replace function agentrl.to_ready_v1(
  run_ bigint, item_ uuid, trajectories_ uuid[], start_versions_ bigint[], attempts_ bigint, at_ timestamptz, from_ text,
  fence_ bigint, actor_ text, why_ text, source_ bigint default null) returns void language plpgsql as $$
begin
  insert into agentrl.ready (run, item, trajectories, start_versions, n_traj, n_tokens, oldest_update, attempts, oldest_start, at,
                             source, environment)
  select run_, item_, trajectories_, start_versions_, cardinality(trajectories_), sum(t.n_tokens),
         case when source_ is null then min(agentrl.oldest_update_v1(run_, t.versions)) else 0 end, attempts_,
         min(t.started_at), at_, source_, case when source_ is not null then min(t.environment) end
  from unnest(trajectories_, start_versions_) m (id, start_version)
  join agentrl.trajectory t on t.run = coalesce(source_, run_) and t.start_version = m.start_version and t.id = m.id;
  insert into agentrl.event (run, trajectory, from_place, to_place, fence, actor, why)
  select run_, id, from_, 'ready', fence_, actor_, why_ from unnest(trajectories_) id;
end $$;

-- Puts a leased item, whose row was just deleted, back into ready; a charged one may have used up its claims.
create or replace function agentrl.return_lease_v1(r agentrl.run, l agentrl.lease, charge boolean, actor_ text, why_ text)
returns boolean language plpgsql as $$
declare
  attempts_ bigint := l.attempts + charge::int;
begin
  if attempts_ >= r.max_lease_attempts then
    perform agentrl.drop_item_v1(l.run, l.trajectories, l.start_versions, 'lease', 'max_attempts',
                                 format('%s claims ended without a commit', attempts_), l.fence, actor_, l.source);
    return false;
  end if;
  perform agentrl.to_ready_v1(l.run, l.item, l.trajectories, l.start_versions, attempts_, l.ready_at, 'lease', l.fence,
                              actor_, why_, l.source);
  return true;
end $$;

-- Closes an open group: no seat of it is served again, and members that are not in ready are dropped. The caller holds the run row
-- and the group row.
create or replace function agentrl.close_group_v1(
  run_ bigint, grp_ uuid, state_ text, reason_ text, detail_ text, fence_ bigint, actor_ text) returns void language plpgsql as $$
declare
  m record;
begin
  update agentrl.grp set state = state_ where id = grp_;
  update agentrl.dropped set retryable = false where grp = grp_ and retried_by is null;
  for m in
    with l as (delete from agentrl.live where grp = grp_ returning trajectory, start_version),
         j as (delete from agentrl.grade_job where grp = grp_ returning trajectory, start_version),
         d as (delete from agentrl.graded where grp = grp_ returning trajectory, start_version)
    select *, 'live' as place from l union all select *, 'grade_job' from j union all select *, 'graded' from d
  loop
    perform agentrl.drop_v1(run_, m.start_version, m.trajectory, m.place, reason_, detail_, false, false, fence_, actor_);
  end loop;
end $$;

-- Re-evaluates a group after an end of one of its members. The caller holds the run row and the group row.
create or replace function agentrl.settle_group_v1(run_ bigint, grp_ uuid, fence_ bigint, actor_ text) returns void language plpgsql as $$
declare
  g agentrl.grp;
  ids uuid[];
  starts bigint[];
begin
  select * into g from agentrl.grp where id = grp_;
  if g.state <> 'open' then
    return;
  end if;
  select array_agg(t.id order by t.seat), array_agg(t.start_version order by t.seat) into ids, starts
  from agentrl.graded d
  join agentrl.trajectory t on t.run = d.run and t.start_version = d.start_version and t.id = d.trajectory
  where d.run = run_ and d.grp = grp_;
  if cardinality(ids) = g.size then
    delete from agentrl.graded where grp = grp_;
    perform agentrl.to_ready_v1(run_, grp_, ids, starts, 0, clock_timestamp(), 'graded', fence_, actor_, 'group complete');
    perform agentrl.close_group_v1(run_, grp_, 'complete', 'superseded', 'its group was complete without it', fence_, actor_);
  elsif (select count(*) from agentrl.dropped where grp = grp_ and not retryable) > g.extra then
    perform agentrl.close_group_v1(run_, grp_, 'dropped', 'group_incomplete',
      case g.extra when 0 then 'a seat of the group was lost' else 'more seats of the group were lost than were redundant' end, fence_, actor_);
  end if;
end $$;

-- Ends one seat without data: the trajectory is dropped, and its group, if any, re-evaluated. The caller has deleted the row
-- and holds the run row and the group row.
create or replace function agentrl.end_seat_v1(
  run_ bigint, start_version_ bigint, trajectory_ uuid, grp_ uuid, from_ text, reason_ text, detail_ text, charged_ boolean,
  retryable_ boolean, fence_ bigint, actor_ text) returns void language plpgsql as $$
begin
  perform agentrl.drop_v1(run_, start_version_, trajectory_, from_, reason_, detail_, charged_, retryable_, fence_, actor_);
  if grp_ is not null then
    perform agentrl.settle_group_v1(run_, grp_, fence_, actor_);
  end if;
end $$;
