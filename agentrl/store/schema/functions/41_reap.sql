-- Collecting what has expired, inside open and claim: there is no maintenance process.

-- Leaves a running episode, with the turns that are stored, to whoever continues it. A charged one costs an attempt.
create or replace function agentrl.park_live_v1(l agentrl.live, charge boolean, actor_ text, why_ text) returns void language plpgsql as $$
begin
  update agentrl.live set parked_at = clock_timestamp(), fence = nextval('agentrl.fence') where trajectory = l.trajectory;
  update agentrl.trajectory set failures = failures + charge::int
  where charge and run = l.run and start_version = l.start_version and id = l.trajectory;
  perform agentrl.note_v1(l.run, l.trajectory, 'live', 'live', l.fence, actor_, why_);
end $$;

-- Episodes whose lease lapsed or that are too old lose their seat, or are parked where the run continues them; never those of an
-- agent outside, which nobody else can continue.
create or replace function agentrl.reap_episodes_v1(r agentrl.run) returns void language plpgsql as $$
declare
  c record;
  old boolean;
begin
  for c in
    select l as row, l.trajectory, l.start_version, l.grp, l.worker, l.fence,
           l.parked_at is null and agentrl.lapsed_v1(l.lease_until, l.lease) as lapsed,
           r.resume_partial and l.purpose = 'train' and l.next_seg > 0 and t.failures + 1 < r.max_attempts
             and t.sandbox is distinct from 'outside' as resumable,
           l.purpose = 'train' and coalesce(t.started_at + r.max_age < now(), false) as old
    from agentrl.live l
    join agentrl.trajectory t on t.run = l.run and t.start_version = l.start_version and t.id = l.trajectory
    where l.run = r.id
      and (l.parked_at is null and agentrl.lapsed_v1(l.lease_until, l.lease)
           or (l.purpose = 'train' and t.started_at + r.max_age < now()))
    order by l.fence
  loop
    if c.grp is not null then
      perform 1 from agentrl.grp where id = c.grp for update;
    end if;
    -- A row that is locked is just being written: its worker lives.
    perform 1 from agentrl.live
    where trajectory = c.trajectory and fence = c.fence and (not c.lapsed or agentrl.lapsed_v1(lease_until, lease))
    for update skip locked;
    continue when not found;
    if c.lapsed and c.resumable and not c.old then
      perform agentrl.park_live_v1(c.row, true, 'reaper', format('worker %s let its lease lapse', c.worker));
      continue;
    end if;
    delete from agentrl.live where trajectory = c.trajectory;
    old := not c.lapsed;
    perform agentrl.end_seat_v1(
      r.id, c.start_version, c.trajectory, c.grp, 'live', case when old then 'too_old' else 'infrastructure' end,
      case when old then 'older than max_age' else format('worker %s let its lease lapse', c.worker) end,
      true, not old or c.grp is not null, c.fence, 'reaper');
  end loop;
end $$;

-- Ended episodes that are too old while they wait for a verdict or for their group; grade jobs of dead workers are free again.
create or replace function agentrl.reap_waiting_v1(r agentrl.run) returns void language plpgsql as $$
declare
  c record;
begin
  for c in
    select trajectory, fence, worker from agentrl.grade_job
    where run = r.id and worker is not null and agentrl.lapsed_v1(lease_until, lease) order by trajectory
  loop
    perform agentrl.fail_grade_v1(c.trajectory, c.fence, format('reward worker %s let its lease lapse', c.worker));
  end loop;
  for c in
    select w.* from (
      select trajectory, start_version, grp, 'grade_job' as place from agentrl.grade_job where run = r.id and purpose = 'train'
      union all select trajectory, start_version, grp, 'graded' from agentrl.graded where run = r.id) w
    join agentrl.trajectory t on t.run = r.id and t.start_version = w.start_version and t.id = w.trajectory
    where t.started_at + r.max_age < now()
    order by w.grp, w.trajectory
  loop
    if c.grp is not null then
      perform 1 from agentrl.grp where id = c.grp for update;
    end if;
    if c.place = 'graded' then
      delete from agentrl.graded where trajectory = c.trajectory;
    else
      delete from agentrl.grade_job where trajectory = c.trajectory;
    end if;
    continue when not found;
    perform agentrl.end_seat_v1(r.id, c.start_version, c.trajectory, c.grp, c.place, 'too_old', 'older than max_age', true,
                                c.grp is not null, null, 'reaper');
  end loop;
end $$;

-- Episodes that can't be claimed any more because their oldest token is out of range: running ones (of one worker, or of all) and
-- those that wait for a verdict or their group. Their seats start again; the dropped ones are returned.
create or replace function agentrl.reap_stale_v1(r agentrl.run, worker_ text) returns uuid[] language plpgsql as $$
declare
  c record;
  updates_ bigint;
  gone uuid[] := '{}';
begin
  if r.lag_bound is null or r.staleness_mode <> 'trajectory' then
    return gone;
  end if;
  select h.updates into updates_ from agentrl.head_v1(r.id) h;
  for c in
    with waiting as (
      select trajectory, start_version, grp, 'grade_job' as place from agentrl.grade_job where run = r.id and purpose = 'train'
      union all select trajectory, start_version, grp, 'graded' from agentrl.graded where run = r.id
    ), w as (
      select l.trajectory, l.start_version, l.grp, 'live' as place, l.fence, l.versions from agentrl.live l
      where l.run = r.id and l.purpose = 'train' and l.versions <> '{}' and (worker_ is null or l.worker = worker_)
      union all
      select q.trajectory, q.start_version, q.grp, q.place, t.fence, t.versions from waiting q
      join agentrl.trajectory t on t.run = r.id and t.start_version = q.start_version and t.id = q.trajectory
      where worker_ is null
    )
    select w.*, o.lag from w cross join lateral (select updates_ - agentrl.oldest_update_v1(r.id, w.versions) as lag) o
    where o.lag > r.lag_bound order by w.fence
  loop
    if c.grp is not null then
      perform 1 from agentrl.grp where id = c.grp for update;
    end if;
    if c.place = 'live' then
      -- A row that is locked is just being written or ended; the next collection sees what became of it.
      perform 1 from agentrl.live where trajectory = c.trajectory for update skip locked;
      continue when not found;
      delete from agentrl.live where trajectory = c.trajectory;
    elsif c.place = 'grade_job' then
      delete from agentrl.grade_job where trajectory = c.trajectory;
    else
      delete from agentrl.graded where trajectory = c.trajectory;
    end if;
    continue when not found;
    perform agentrl.end_seat_v1(r.id, c.start_version, c.trajectory, c.grp, c.place, 'stale',
      format('lag %s exceeds the bound %s before it could be claimed', c.lag, r.lag_bound), true, true, c.fence,
      coalesce(worker_, 'reaper'));
    gone := gone || c.trajectory;
  end loop;
  return gone;
end $$;

-- Drops a worker's running episodes that can't be claimed any more and returns them: the worker stops them.
create or replace function agentrl.drop_stale_v1(run_ bigint, worker_ text) returns uuid[] language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_run_v1(run_);
begin
  perform pg_advisory_xact_lock(hashtext('agentrl.admission'), run_::int);
  return agentrl.reap_stale_v1(r, worker_);
end $$;

-- Groups that are still open after their deadline: their stragglers would hold the others until those are stale.
create or replace function agentrl.reap_groups_v1(r agentrl.run) returns void language plpgsql as $$
declare
  g uuid;
begin
  for g in
    select id from agentrl.grp where run = r.id and state = 'open' and created_at + r.group_deadline < now()
    order by created_at, id
  loop
    perform 1 from agentrl.grp where id = g and state = 'open' for update;
    continue when not found;
    perform agentrl.close_group_v1(r.id, g, 'dropped', 'group_incomplete', format('still open after the deadline of %s', r.group_deadline), null, 'reaper');
  end loop;
end $$;

-- Leases of a trainer that lives no more, and ready items out of range by version or by age.
create or replace function agentrl.reap_items_v1(r agentrl.run) returns void language plpgsql as $$
declare
  l agentrl.lease;
  c agentrl.ready;
  updates_ bigint;
begin
  for l in
    delete from agentrl.lease where run = r.id and agentrl.lapsed_v1(lease_until, lease) returning *
  loop
    perform agentrl.return_lease_v1(r, l, true, 'reaper', 'the lease lapsed');
  end loop;
  if r.lag_bound is null and r.max_age is null then
    return;
  end if;
  select h.updates into updates_ from agentrl.head_v1(r.id) h;
  for c in
    delete from agentrl.ready
    where run = r.id and (updates_ - oldest_update > r.lag_bound or (source is null and oldest_start + r.max_age < now()))
    returning *
  loop
    if updates_ - c.oldest_update > r.lag_bound then
      perform agentrl.drop_item_v1(r.id, c.trajectories, c.start_versions, 'ready', 'stale',
        format('lag %s exceeds the bound %s', updates_ - c.oldest_update, r.lag_bound), null, 'reaper', c.source);
    else
      perform agentrl.drop_item_v1(r.id, c.trajectories, c.start_versions, 'ready', 'too_old', 'older than max_age', null,
                                   'reaper', c.source);
    end if;
  end loop;
end $$;

-- At most once a second, or when something ready has got out of range, whose place others could have; and only by whoever gets the
-- admission lock at once: groups are then locked by nobody else in another order. The caller holds the run row.
create or replace function agentrl.reap_v1(r agentrl.run) returns void language plpgsql as $$
begin
  if not pg_try_advisory_xact_lock(hashtext('agentrl.admission'), r.id::int) then
    return;
  end if;
  update agentrl.reap set at = clock_timestamp()
  where run = r.id and (at < clock_timestamp() - interval '1 second' or exists (
    select from agentrl.ready q
    where q.run = r.id and q.oldest_update < (select h.updates from agentrl.head_v1(r.id) h) - r.lag_bound));
  if not found then
    return;
  end if;
  perform agentrl.reap_episodes_v1(r);
  perform agentrl.reap_waiting_v1(r);
  perform agentrl.reap_stale_v1(r, null);
  perform agentrl.reap_groups_v1(r);
  perform agentrl.reap_items_v1(r);
end $$;
