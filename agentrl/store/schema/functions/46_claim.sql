-- Claiming items for a step, and renewing them before the optimizer step.

-- Whether anything could still become ready for this claim, apart from what is ready in range already (in_range_) and what can't
-- become so (other_): ready but of an environment that was not asked for, or held by who asks.
create or replace function agentrl.more_can_arise_v2(r agentrl.run, in_range_ bigint, other_ bigint, step_ bigint) returns boolean
language plpgsql as $$
declare
  outstanding bigint := agentrl.outstanding_v1(r.id);
begin
  if outstanding - other_ > in_range_ then
    return true;
  end if;
  if r.status <> 'running' then
    return false;
  end if;
  return (r.target_steps is null or (r.target_steps - step_) * r.batch_max - outstanding >= r.group_size)
    and (exists (select 1 from agentrl.task_cursor where run = r.id and split = 'train' and n > 0)
         or exists (select 1 from agentrl.dropped where run = r.id and purpose = 'train' and retryable and retried_by is null));
end $$;

-- Ready items of a run with what a claim asks about them: in range by lag, of a wanted environment, long.
create or replace function agentrl.candidates_v1(r agentrl.run, updates_ bigint, environments_ text[]) returns table (
  item uuid, n_traj bigint, oldest_update bigint, at timestamptz, in_range boolean, wanted boolean, long boolean)
language sql stable as $$
  select q.item, q.n_traj, q.oldest_update, q.at, r.lag_bound is null or updates_ - q.oldest_update <= r.lag_bound,
         environments_ is null or coalesce(q.environment, r.environment) = any (environments_),
         coalesce(q.n_tokens >= r.long_tokens * q.n_traj, false)
  from agentrl.ready q where q.run = r.id
$$;

-- The items that a claim takes: oldest in range first, and of its n places the reserved share to long items as far as there are
-- any; none while a reserved place is empty and the oldest candidate has waited less than long_wait.
create or replace function agentrl.pick_v1(r agentrl.run, updates_ bigint, n_ bigint, environments_ text[]) returns uuid[]
language plpgsql as $$
declare
  reserved constant bigint := case when r.long_tokens is null then 0 else ceil(r.long_share * n_) end;
  seen record;
  items uuid[];
begin
  if reserved = 0 then
    select coalesce(array_agg(q.item), '{}') into items from (
      select item from agentrl.ready
      where run = r.id and oldest_update >= coalesce(updates_ - r.lag_bound, -9223372036854775807)
        and (environments_ is null or coalesce(environment, r.environment) = any (environments_))
      order by oldest_update, at, item limit n_ for update skip locked) q;
    return items;
  end if;
  select count(*) as n, count(*) filter (where long) as long, min(at) as since into seen
  from agentrl.candidates_v1(r, updates_, environments_) c where c.in_range and c.wanted;
  if seen.n >= n_ and seen.long < reserved and clock_timestamp() < seen.since + r.long_wait then
    return '{}';
  end if;
  with c as (
    select q.*, row_number() over (partition by q.long order by q.oldest_update, q.at, q.item) as place
    from agentrl.candidates_v1(r, updates_, environments_) q where q.in_range and q.wanted
  ), picked as (
    select c.item from c
    order by case when c.long and c.place <= reserved then 0 when not c.long then 1 else 2 end, c.oldest_update, c.at, c.item
    limit n_
  ), locked as (
    select q.item from agentrl.ready q where q.run = r.id and q.item in (select p.item from picked p) for update skip locked
  )
  select coalesce(array_agg(l.item), '{}') into items from locked l;
  return items;
end $$;

-- Puts back what a claim leased whose reply was lost: all that this fence leased under a token that the trainer doesn't name, and
-- that no update has. Nobody failed, so nothing is charged.
create or replace function agentrl.return_unheard_v1(r agentrl.run, fence_ bigint, tokens_ bigint[]) returns void
language plpgsql as $$
declare
  l agentrl.lease;
begin
  for l in
    delete from agentrl.lease where run = r.id and fence = fence_ and not in_update and token <> all (tokens_) returning *
  loop
    perform agentrl.return_lease_v1(r, l, false, r.trainer_owner, format('the reply of claim %s was lost', l.token));
  end loop;
end $$;

-- Leases whole items of the given environments (NULL: of all): at least n_min trajectories, or what is left when no more can
-- arise, or none. tokens_: of what the same step leased before. The queue is read once, for the counts.
create or replace function agentrl.claim_v3(
  run_ bigint, fence_ bigint, n_min bigint, n_max bigint, lease_s double precision, environments_ text[], tokens_ bigint[])
returns jsonb language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_trainer_v1(run_, fence_);
  h record;
  token_ bigint;
  held bigint;
  enough bigint;
  other bigint := 0;
  items uuid[] := '{}';
  claimed bigint := 0;
  counts record;
  examined bigint;
  admissible bigint;
  waiting text;
  doc jsonb := '[]';
begin
  -- The same claim may still be on its way when it is made again: the second one waits for the first and puts its items back.
  perform pg_advisory_xact_lock(hashtext('agentrl.claim'), run_::int);
  perform agentrl.return_unheard_v1(r, fence_, tokens_);
  perform agentrl.reap_v1(r);
  select * into h from agentrl.head_v1(run_);
  select coalesce(sum(n_traj), 0) into held from agentrl.lease where run = run_ and fence = fence_ and token = any (tokens_);
  select coalesce(sum(c.n_traj), 0) into enough from (
    select n_traj from agentrl.candidates_v1(r, h.updates, environments_) where in_range and wanted limit n_min) c;
  -- Each statement sees what was committed before it. So whether this is all there will be is asked before the items are picked:
  -- what became ready in between is then picked, too.
  if enough < n_min then
    if environments_ is not null then
      select coalesce(sum(n_traj), 0) into other from agentrl.candidates_v1(r, h.updates, environments_) where not wanted;
    end if;
    waiting := case when agentrl.more_can_arise_v2(r, enough, other + held, h.step) then 'rollouts' else 'nothing' end;
  end if;
  if waiting is distinct from 'rollouts' then
    items := agentrl.pick_v1(r, h.updates, n_max / r.group_size, environments_);
    if waiting is null and cardinality(items) * r.group_size < n_min then
      waiting := 'rollouts';
      items := '{}';
    end if;
  end if;
  if items <> '{}' then
    token_ := nextval('agentrl.fence');
    with d as (delete from agentrl.ready where run = run_ and item = any (items) returning *),
         i as (insert into agentrl.lease (run, item, token, fence, trajectories, start_versions, n_traj, n_tokens, oldest_update,
                                          attempts, oldest_start, ready_at, lease, lease_until, source, environment)
               select run, item, token_, fence_, trajectories, start_versions, n_traj, n_tokens, oldest_update, attempts,
                      oldest_start, at, make_interval(secs => lease_s), clock_timestamp() + make_interval(secs => lease_s),
                      source, environment
               from d returning *),
         e as (insert into agentrl.event (run, trajectory, from_place, to_place, fence, actor, why)
               select run_, t, 'ready', 'lease', fence_, r.trainer_owner, format('claim %s', token_)
               from i, unnest(i.trajectories) t)
    select jsonb_agg(jsonb_build_object(
             'item', i.item, 'token', token_, 'oldest_update', i.oldest_update,
             'lag', agentrl.item_lag_v1(r, h.updates, i.oldest_update, i.trajectories, i.start_versions, i.source),
             'trajectories', i.trajectories, 'start_versions', i.start_versions, 'source', coalesce(i.source, run_))
             order by i.oldest_update, i.ready_at, i.item), sum(i.n_traj)
    into doc, claimed from i;
  end if;
  select * into counts from agentrl.work_v1(run_);
  examined := counts.ready;
  admissible := counts.ready;
  if r.lag_bound is not null or environments_ is not null then
    -- Both by one statement: what becomes ready between two would be found in range without having been looked at.
    select coalesce(sum(n_traj), 0), coalesce(sum(n_traj) filter (where in_range and wanted), 0) into examined, admissible
    from agentrl.candidates_v1(r, h.updates, environments_);
  end if;
  return jsonb_build_object('examined', examined + claimed, 'admissible', admissible + claimed, 'waiting', waiting,
                            'items', doc, 'counts', to_jsonb(counts));
end $$;

-- How many of these leases the trainer holds, each by its token. The sets are intersected: of a join the planner expects a row or
-- two, and would read the whole table for each item.
create or replace function agentrl.held_v1(run_ bigint, fence_ bigint, items_ uuid[], tokens_ bigint[]) returns bigint
language sql as $$
  select count(*) from (
    select item, token from agentrl.lease where run = run_ and fence = fence_ and item = any (items_)
    intersect select item, token from unnest(items_, tokens_) m (item, token)) held
$$;

-- Before the optimizer step: all items must still be leased by these tokens and in range. From here a dying trainer is charged.
create or replace function agentrl.renew_leases_v1(run_ bigint, fence_ bigint, items_ uuid[], tokens_ bigint[], lease_s double precision)
returns void language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_trainer_v1(run_, fence_);
  updates_ bigint;
  held bigint;
  oldest bigint;
begin
  select updates into updates_ from agentrl.head_v1(run_);
  with u as (
    update agentrl.lease set in_update = true, lease = make_interval(secs => lease_s),
      lease_until = clock_timestamp() + make_interval(secs => lease_s)
    where run = run_ and item = any (items_) returning oldest_update)
  select min(oldest_update) into oldest from u;
  held := agentrl.held_v1(run_, fence_, items_, tokens_);
  if held <> cardinality(items_) then
    perform agentrl.fail_v1('AR008', format('%s of %s leases of run "%s" were lost: resume from the newest checkpoint',
                                            cardinality(items_) - held, cardinality(items_), r.name));
  elsif updates_ - oldest > r.lag_bound then
    perform agentrl.fail_v1('AR008', format('an item of run "%s" has lag %s, over the bound %s: resume from the newest checkpoint',
                                            r.name, updates_ - oldest, r.lag_bound));
  end if;
end $$;
