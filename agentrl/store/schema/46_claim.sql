-- Claiming items for a step, and renewing them before the optimizer step.

-- Whether anything could still become ready, apart from what is ready in range already.
create function agentrl.more_can_arise_v1(r agentrl.run, updates_ bigint, step_ bigint) returns boolean language plpgsql as $$
declare
  outstanding bigint := agentrl.outstanding_v1(r.id);
  in_range bigint;
begin
  select coalesce(sum(n_traj), 0) into in_range from agentrl.ready
  where run = r.id and (r.lag_bound is null or updates_ - oldest_update <= r.lag_bound);
  if outstanding > in_range then
    return true;
  end if;
  if r.status <> 'running' then
    return false;
  end if;
  return (r.target_steps is null or (r.target_steps - step_) * r.batch_max - outstanding >= r.group_size)
    and (exists (select 1 from agentrl.task_cursor where run = r.id and split = 'train' and n > 0)
         or exists (select 1 from agentrl.dropped where run = r.id and purpose = 'train' and retryable and retried_by is null));
end $$;

-- Leases whole items, oldest in range first: at least n_min trajectories, or what is left when no more can arise, or none.
create function agentrl.claim_v1(run_ bigint, fence_ bigint, n_min bigint, n_max bigint, lease_s double precision)
returns jsonb language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_trainer_v1(run_, fence_);
  h record;
  token_ bigint;
  examined bigint;
  admissible bigint;
  items uuid[];
  waiting text;
  doc jsonb := '[]';
begin
  perform agentrl.reap_v1(r);
  select * into h from agentrl.head_v1(run_);
  select coalesce(sum(n_traj), 0),
         coalesce(sum(n_traj) filter (where r.lag_bound is null or h.updates - oldest_update <= r.lag_bound), 0)
  into examined, admissible from agentrl.ready where run = run_;
  select coalesce(array_agg(item), '{}') into items from (
    select item from agentrl.ready
    where run = run_ and (r.lag_bound is null or h.updates - oldest_update <= r.lag_bound)
    order by oldest_update, at, item limit n_max / r.group_size for update skip locked) q;
  if cardinality(items) * r.group_size < n_min then
    if cardinality(items) * r.group_size < admissible or agentrl.more_can_arise_v1(r, h.updates, h.step) then
      waiting := 'rollouts';
      items := '{}';
    else
      waiting := 'nothing';
    end if;
  end if;
  if items <> '{}' then
    token_ := nextval('agentrl.fence');
    with d as (delete from agentrl.ready where run = run_ and item = any (items) returning *),
         i as (insert into agentrl.lease (run, item, token, fence, trajectories, start_versions, n_traj, n_tokens, oldest_update,
                                          attempts, oldest_start, ready_at, lease, lease_until)
               select run, item, token_, fence_, trajectories, start_versions, n_traj, n_tokens, oldest_update, attempts,
                      oldest_start, at, make_interval(secs => lease_s), clock_timestamp() + make_interval(secs => lease_s)
               from d returning *),
         e as (insert into agentrl.event (run, trajectory, from_place, to_place, fence, actor, why)
               select run_, t, 'ready', 'lease', fence_, r.trainer_owner, format('claim %s', token_)
               from i, unnest(i.trajectories) t)
    select jsonb_agg(jsonb_build_object(
             'item', i.item, 'token', token_, 'oldest_update', i.oldest_update, 'lag', h.updates - i.oldest_update,
             'trajectories', i.trajectories, 'start_versions', i.start_versions) order by i.oldest_update, i.ready_at, i.item)
    into doc from i;
  end if;
  return jsonb_build_object('examined', examined, 'admissible', admissible, 'waiting', waiting, 'items', doc);
end $$;

-- Before the optimizer step: all items must still be leased by these tokens and in range. From here a dying trainer is charged.
create function agentrl.renew_leases_v1(run_ bigint, fence_ bigint, items_ uuid[], tokens_ bigint[], lease_s double precision)
returns void language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_trainer_v1(run_, fence_);
  updates_ bigint;
  n bigint;
  oldest bigint;
begin
  select updates into updates_ from agentrl.head_v1(run_);
  with u as (
    update agentrl.lease l set in_update = true, lease = make_interval(secs => lease_s),
      lease_until = clock_timestamp() + make_interval(secs => lease_s)
    from unnest(items_, tokens_) m (item, token)
    where l.run = run_ and l.item = m.item and l.token = m.token and l.fence = fence_ returning l.oldest_update)
  select count(*), min(oldest_update) into n, oldest from u;
  if n <> cardinality(items_) then
    perform agentrl.fail_v1('AR008', format('%s of %s leases of run "%s" were lost: resume from the newest checkpoint',
                                            cardinality(items_) - n, cardinality(items_), r.name));
  elsif updates_ - oldest > r.lag_bound then
    perform agentrl.fail_v1('AR008', format('an item of run "%s" has lag %s, over the bound %s: resume from the newest checkpoint',
                                            r.name, updates_ - oldest, r.lag_bound));
  end if;
end $$;
