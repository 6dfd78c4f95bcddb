-- Starting, renewing and releasing the one trainer of a run.

-- Recomputes what lag counts from: the versions on the parent chain of `head_` count their own updates, the others twice those of
-- their last ancestor on that chain minus their own. The memo for ready items is rebuilt by the caller.
create or replace function agentrl.recompute_lag_v1(run_ bigint, head_ bigint) returns void language sql as $$
  with recursive chain as (
    select version, parent, updates from agentrl.policy_version where run = run_ and version = head_
    union all
    select p.version, p.parent, p.updates from agentrl.policy_version p join chain c on p.run = run_ and p.version = c.parent
  ), meet (version, common) as (
    select version, updates from chain
    union all
    select p.version, m.common from agentrl.policy_version p join meet m on p.run = run_ and p.parent = m.version
    where p.version not in (select version from chain)
  )
  update agentrl.policy_version v set effective_update = 2 * coalesce(m.common, 0) - v.updates
  from agentrl.policy_version p left join meet m on m.version = p.version
  where p.run = run_ and v.run = run_ and v.version = p.version
$$;

-- Marks the steps after `keep` with their ledger and checkpoints as abandoned; their items come back to ready, or are dropped
-- where retention removed a member (a resume from a checkpoint older than the newest).
create or replace function agentrl.abandon_v1(r agentrl.run, keep bigint, actor_ text) returns uuid[] language plpgsql as $$
declare
  c record;
  why_ constant text := format('its step was abandoned by branch %s', r.branch);
  items uuid[] := '{}';
begin
  update agentrl.step set abandoned_by = r.branch where run = r.id and abandoned_by is null and step > keep;
  update agentrl.checkpoint set abandoned_by = r.branch where run = r.id and abandoned_by is null and step > keep;
  for c in
    with gone as (
      update agentrl.consumed set abandoned_by = r.branch
      where run = r.id and abandoned_by is null and step > keep returning item, step, trajectory, start_version, source)
    select g.item, g.source, array_agg(g.trajectory order by t.seat) as trajectories,
           array_agg(g.start_version order by t.seat) as starts,
           bool_or(agentrl.is_retired_v1(coalesce(g.source, r.id), g.start_version)) as retired
    from gone g
    left join agentrl.trajectory t on t.run = coalesce(g.source, r.id) and t.start_version = g.start_version and t.id = g.trajectory
    group by g.item, g.source order by min(g.step), min(t.fence)
  loop
    if c.retired then
      perform agentrl.note_v1(r.id, id, 'consumed', 'ready', r.trainer_fence, actor_, why_) from unnest(c.trajectories) id;
      perform agentrl.drop_item_v1(r.id, c.trajectories, c.starts, 'ready', 'abandoned_branch', 'removed by retention',
                                   r.trainer_fence, actor_, c.source);
      continue;
    end if;
    perform agentrl.to_ready_v1(r.id, c.item, c.trajectories, c.starts, 0, clock_timestamp(), 'consumed', r.trainer_fence, actor_,
                                why_, c.source);
    items := items || c.item;
  end loop;
  return items;
end $$;

-- Rebuilds oldest_update of everything in ready and drops what the new branch can't use any more.
create or replace function agentrl.refresh_ready_v1(r agentrl.run, actor_ text) returns bigint language plpgsql as $$
declare
  updates_ bigint;
  c agentrl.ready;
  n bigint := 0;
begin
  update agentrl.ready q set oldest_update = (
    select min(agentrl.oldest_update_v1(r.id, t.versions)) from unnest(q.trajectories, q.start_versions) m (id, start_version)
    join agentrl.trajectory t on t.run = r.id and t.start_version = m.start_version and t.id = m.id)
  where run = r.id and source is null;
  select updates into updates_ from agentrl.head_v1(r.id);
  for c in delete from agentrl.ready where run = r.id and updates_ - oldest_update > r.lag_bound returning * loop
    perform agentrl.drop_item_v1(r.id, c.trajectories, c.start_versions, 'ready', 'abandoned_branch',
      format('lag %s on branch %s exceeds the bound %s', updates_ - c.oldest_update, r.branch, r.lag_bound), r.trainer_fence,
      actor_, c.source);
    n := n + 1;
  end loop;
  return n;
end $$;

-- Takes the trainer fence and, with earlier history, opens a branch at a checkpoint or at the root, all in one transaction.
create or replace function agentrl.start_trainer_v1(
  run_ bigint, owner_ text, lease_s double precision, checkpoint_ bigint,
  out fence bigint, out branch bigint, out step bigint, out updates bigint, out version bigint, out returned bigint,
  out dropped bigint) language plpgsql as $$
declare
  r agentrl.run;
  c agentrl.checkpoint;
  base agentrl.policy_version;
  l agentrl.lease;
  died boolean;
  items uuid[];
begin
  select * into r from agentrl.run where id = run_ for update;
  if not found then
    perform agentrl.fail_v1('AR009', format('there is no run with id %s', run_));
  end if;
  died := r.trainer_owner is not null and r.trainer_owner <> owner_;
  if died and not agentrl.lapsed_v1(r.trainer_lease_until, r.trainer_lease) then
    perform agentrl.fail_v1('AR001', format('trainer %s holds run "%s" until %s: stop it, or wait until its lease lapses',
      r.trainer_owner, r.name, greatest(r.trainer_lease_until, agentrl.server_started_v1() + r.trainer_lease)::timestamptz(0)));
  end if;
  if checkpoint_ is not null then
    select * into c from agentrl.checkpoint k
    where k.id = checkpoint_ and k.run = run_ and k.abandoned_by is null and k.removed_at is null;
    if not found then
      perform agentrl.fail_v1('AR009', format('checkpoint %s is not on the live history of run "%s", or was removed', checkpoint_, r.name));
    end if;
    -- The weights of the version, not the checkpoint's own file: engines load the one, trainers the other.
    select * into base from agentrl.policy_version v where v.run = run_ and v.version = c.version;
    base.updates := c.updates;
  else
    select * into base from agentrl.policy_version v where v.run = run_ and v.updates = 0 and v.status <> 'failed'
    order by v.version limit 1;
  end if;
  update agentrl.run set branch = run.branch + 1, trainer_fence = nextval('agentrl.fence'), trainer_owner = owner_,
    trainer_lease = make_interval(secs => lease_s), trainer_lease_until = clock_timestamp() + make_interval(secs => lease_s)
  where id = run_ returning * into r;
  fence := r.trainer_fence;
  branch := r.branch;
  step := coalesce(c.step, 0);
  updates := coalesce(c.updates, 0);
  items := agentrl.abandon_v1(r, step, owner_);
  if base.version is not null then
    select coalesce(max(v.version) + 1, 0) into version from agentrl.policy_version v where v.run = run_;
    perform agentrl.ensure_partitions_v1(run_, version);
    insert into agentrl.policy_version (run, version, parent, updates, effective_update, uri, checksum, status, branch, fence,
                                        published_at)
    values (run_, version, base.version, base.updates, base.updates, base.uri, base.checksum, 'published', r.branch, fence,
            clock_timestamp());
    perform agentrl.recompute_lag_v1(run_, version);
  end if;
  for l in delete from agentrl.lease where run = run_ returning * loop
    perform agentrl.return_lease_v1(r, l, died and l.in_update, owner_, 'its trainer was replaced');
    items := items || l.item;
  end loop;
  dropped := agentrl.refresh_ready_v1(r, owner_);
  select count(*) into returned from agentrl.ready q where q.run = run_ and q.item = any (items);
end $$;

-- Renews the trainer's lease.
create or replace function agentrl.renew_trainer_v1(run_ bigint, fence_ bigint, lease_s double precision) returns void language plpgsql as $$
begin
  perform 1 from agentrl.run where id = run_ for no key update;
  perform agentrl.hold_trainer_v1(run_, fence_);
  update agentrl.run set trainer_lease = make_interval(secs => lease_s),
    trainer_lease_until = clock_timestamp() + make_interval(secs => lease_s) where id = run_;
end $$;

-- Gives the trainer's place free: its leases return uncharged and its fence writes nothing any more.
create or replace function agentrl.release_trainer_v1(run_ bigint, fence_ bigint) returns void language plpgsql as $$
declare
  r agentrl.run;
  l agentrl.lease;
begin
  select * into r from agentrl.run where id = run_ for update;
  if r.trainer_fence = fence_ and r.trainer_owner is null then
    return;
  end if;
  r := agentrl.hold_trainer_v1(run_, fence_);
  for l in delete from agentrl.lease where run = run_ returning * loop
    perform agentrl.return_lease_v1(r, l, false, r.trainer_owner, 'its trainer was released');
  end loop;
  update agentrl.run set trainer_owner = null, trainer_lease_until = null where id = run_;
end $$;
