-- Opening episodes: admission, the task cursor and idempotent requests.

-- Creates one episode: trajectory, live row and event.
create or replace function agentrl.start_episode_v1(
  r agentrl.run, purpose_ text, evaluation_ bigint, start_version_ bigint, split_ text, idx_ bigint, cursor_ bigint, grp_ uuid,
  seat_ bigint, attempt_ bigint, failures_ bigint, retry_of_ uuid, seed_key text, worker_ text, lineage jsonb)
returns uuid language plpgsql as $$
declare
  id_ uuid := agentrl.new_id_v1();
  fence_ bigint := nextval('agentrl.fence');
begin
  if agentrl.is_retired_v1(r.id, start_version_) then
    perform agentrl.fail_v1('AR009', format('version %s of run "%s" was removed by retention: no episode can start on it',
                                            start_version_, r.name));
  end if;
  insert into agentrl.trajectory (
    run, start_version, id, purpose, evaluation, split, task_idx, task_id, cursor, grp, seat, attempt, failures, retry_of, seed,
    worker, fence, model, tokenizer_hash, template_hash, engine, engine_version, engine_dtype, sampling, logprob_kind,
    environment, environment_version, sandbox, origin)
  select r.id, start_version_, id_, purpose_, evaluation_, split_, idx_, k.task_id, cursor_, grp_, seat_, attempt_, failures_,
         retry_of_, ('x' || left(md5(format('%s:%s:%s:%s', r.seed, seed_key, seat_, attempt_)), 15))::bit(60)::bigint, worker_,
         fence_, lineage ->> 'model', lineage ->> 'tokenizer_hash', lineage ->> 'template_hash', lineage ->> 'engine',
         lineage ->> 'engine_version', lineage ->> 'engine_dtype', lineage -> 'sampling', lineage ->> 'logprob_kind',
         lineage ->> 'environment', lineage ->> 'environment_version', lineage ->> 'sandbox', lineage ->> 'origin'
  from agentrl.task k where k.run = r.id and k.split = split_ and k.idx = idx_;
  insert into agentrl.live (trajectory, run, start_version, purpose, grp, worker, fence, lease, lease_until)
  values (id_, r.id, start_version_, purpose_, grp_, worker_, fence_, r.lease, clock_timestamp() + r.lease);
  perform agentrl.note_v1(r.id, id_, null, 'live', fence_, worker_,
                          case when retry_of_ is null then 'opened' else format('retry of %s', retry_of_) end);
  return id_;
end $$;

-- Serves up to n pending retries: of an evaluation, or of training when evaluation_ is NULL.
create or replace function agentrl.serve_retries_v1(
  r agentrl.run, evaluation_ bigint, n_ bigint, start_version_ bigint, worker_ text, lineage jsonb)
returns uuid[] language plpgsql as $$
declare
  d record;
  id_ uuid;
  opened uuid[] := '{}';
begin
  for d in
    select x.trajectory, x.charged, t.* from agentrl.dropped x
    join agentrl.trajectory t on t.run = x.run and t.start_version = x.start_version and t.id = x.trajectory
    where x.run = r.id and x.retryable and x.retried_by is null and x.evaluation is not distinct from evaluation_
    order by x.at, x.trajectory limit n_
  loop
    if d.grp is not null then
      perform 1 from agentrl.grp where id = d.grp for update;
    end if;
    perform 1 from agentrl.dropped
    where run = r.id and trajectory = d.trajectory and retryable and retried_by is null for update;
    continue when not found;
    id_ := agentrl.start_episode_v1(
      r, d.purpose, evaluation_, start_version_, d.split, d.task_idx, d.cursor, d.grp, d.seat, d.attempt + 1,
      d.failures + d.charged::int, d.trajectory, case when evaluation_ is null then d.cursor::text
      else format('%s:%s', d.split, start_version_) end, worker_, lineage);
    update agentrl.dropped set retried_by = id_ where run = r.id and trajectory = d.trajectory;
    opened := opened || id_;
  end loop;
  return opened;
end $$;

-- Serves up to n seats of a group that were never opened, of its first `seats_` ones.
create or replace function agentrl.serve_seats_v1(
  r agentrl.run, grp_ uuid, n_ bigint, seats_ bigint, start_version_ bigint, worker_ text, lineage jsonb) returns uuid[] language plpgsql as $$
declare
  g agentrl.grp;
  opened uuid[] := '{}';
begin
  select * into g from agentrl.grp where id = grp_ and state = 'open' for update;
  while found and cardinality(opened) < n_ and g.next_seat < seats_ loop
    opened := opened || agentrl.start_episode_v1(
      r, 'train', null, start_version_, g.split, g.task_idx, g.cursor, g.id, g.next_seat, 1, 0, null, g.cursor::text, worker_,
      lineage);
    update agentrl.grp set next_seat = next_seat + 1 where id = grp_ returning * into g;
  end loop;
  return opened;
end $$;

-- Takes the next new task; a group gets its row and as many seats as n allows.
create or replace function agentrl.serve_task_v1(r agentrl.run, n_ bigint, start_version_ bigint, worker_ text, lineage jsonb)
returns uuid[] language plpgsql as $$
declare
  c agentrl.task_cursor;
  grp_ uuid;
begin
  update agentrl.task_cursor set next = next + 1 where run = r.id and split = 'train' returning * into c;
  c.next := c.next - 1;
  if r.group_size = 1 then
    return array[agentrl.start_episode_v1(r, 'train', null, start_version_, 'train', c.next % c.n, c.next, null, 0, 1, 0, null,
                                          c.next::text, worker_, lineage)];
  end if;
  insert into agentrl.grp (id, run, split, task_idx, cursor, size, extra)
  values (agentrl.new_id_v1(), r.id, 'train', c.next % c.n, c.next, r.group_size, r.group_extra) returning id into grp_;
  return agentrl.serve_seats_v1(r, grp_, n_, r.group_size + r.group_extra, start_version_, worker_, lineage);
end $$;

-- How many more training episodes may open: by lag or batches under way, less what the asking engine is behind (by lag in smallest
-- batches: no update takes fewer), by the target, and without a bound as many as may run. NULL: no limit.
create or replace function agentrl.room_v1(
  r agentrl.run, engine_version_ bigint, out by_lag bigint, out by_target bigint, out by_running bigint) language plpgsql as $$
declare
  h record;
  engine_update bigint;
  outstanding bigint := agentrl.outstanding_v1(r.id);
  ahead_ constant bigint := coalesce(r.ahead, r.lag_bound);
  batch constant bigint := case when r.ahead is null then r.batch_min else r.batch_max end;
begin
  select * into h from agentrl.head_v1(r.id);
  select effective_update into engine_update from agentrl.policy_version where run = r.id and version = engine_version_;
  if not found then
    perform agentrl.fail_v1('AR005', format('the engine reports version %s, which run "%s" does not know', engine_version_, r.name));
  end if;
  if ahead_ is null then
    by_running := r.max_running - (select count(*) from agentrl.live where run = r.id and purpose = 'train');
  else
    by_lag := (ahead_ + 1) * batch - outstanding - batch * (h.updates - engine_update);
  end if;
  by_lag := least(by_lag, r.batch_max + r.oversample - outstanding - r.batch_max * (h.updates - engine_update));
  by_target := (r.target_steps - h.step) * r.batch_max - outstanding;
end $$;

-- The same request made earlier, or NULL; without the episodes that went to another request since, after their lease had lapsed:
-- their fence is somebody else's.
create or replace function agentrl.earlier_request_v1(request_ uuid, run_ bigint, worker_ text) returns agentrl.open_request
language plpgsql as $$
declare
  q agentrl.open_request;
begin
  select * into q from agentrl.open_request where request = request_;
  if found and (q.worker, q.run) is distinct from (worker_, run_) then
    perform agentrl.fail_v1('AR009', format('request %s was made by worker %s of run %s before', request_, q.worker, q.run));
  elsif found then
    select coalesce(array_agg(o.id order by o.n), '{}') into q.trajectories
    from unnest(q.trajectories) with ordinality o (id, n)
    join agentrl.trajectory t on t.run = q.run and t.start_version = q.start_version and t.id = o.id
    where t.fence < q.fence;
  end if;
  return q;
end $$;

-- Hands up to n parked episodes of one start version, those that wait longest, to a worker. They hold their places already.
create or replace function agentrl.serve_parked_v1(r agentrl.run, n_ bigint, worker_ text, out start_version bigint, out opened uuid[])
language plpgsql as $$
declare
  l agentrl.live;
begin
  opened := '{}';
  select p.start_version into start_version from agentrl.live p where p.run = r.id and p.parked_at is not null
  order by p.parked_at, p.trajectory limit 1;
  for l in
    select * from agentrl.live p where p.run = r.id and p.parked_at is not null and p.start_version = serve_parked_v1.start_version
    order by p.parked_at, p.trajectory limit n_ for update
  loop
    l.fence := nextval('agentrl.fence');
    update agentrl.live set parked_at = null, worker = worker_, fence = l.fence, lease_until = clock_timestamp() + lease
    where trajectory = l.trajectory;
    update agentrl.trajectory t set worker = worker_, fence = l.fence
    where t.run = r.id and t.start_version = l.start_version and t.id = l.trajectory;
    perform agentrl.note_v1(r.id, l.trajectory, 'live', 'live', l.fence, worker_, format('continued after %s turns', l.next_seg));
    opened := opened || l.trajectory;
  end loop;
end $$;

-- Opens up to n training episodes, or says why none: parked ones (not for an agent outside, which can't continue them), then within
-- capacity retries, missing seats of open groups, new tasks.
create or replace function agentrl.open_v1(
  run_ bigint, worker_ text, request_ uuid, n_ bigint, engine_version_ bigint, lineage_ text,
  out refusal text, out start_version bigint, out opened uuid[]) language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_run_v1(run_);
  lineage constant jsonb := lineage_::jsonb;
  earlier agentrl.open_request;
  room record;
  left_ bigint;
  charged bigint := 0;
  g uuid;
  parked record;
  served uuid[];
begin
  perform pg_advisory_xact_lock(hashtext('agentrl.admission'), run_::int);
  earlier := agentrl.earlier_request_v1(request_, run_, worker_);
  start_version := earlier.start_version;
  opened := coalesce(earlier.trajectories, '{}');
  if earlier.request is not null then
    refusal := case when opened = '{}' then 'taken_over' end;
    return;
  end if;
  perform agentrl.reap_v1(r);
  if r.status <> 'running' then
    refusal := 'run_not_running';
    return;
  end if;
  select max(version) into start_version from agentrl.policy_version where run = run_ and status = 'published';
  if start_version is null then
    refusal := 'no_version';
    return;
  end if;
  if not lineage ->> 'origin' = any (r.origins) then
    perform agentrl.fail_v1('AR009', format('run "%s" trains on %s trajectories, not on %s ones: trainer.origins names them',
                                            r.name, array_to_string(r.origins, ' and '), lineage ->> 'origin'));
  end if;
  select * into parked from agentrl.serve_parked_v1(r, case when lineage ->> 'sandbox' = 'outside' then 0 else n_ end, worker_);
  if parked.opened <> '{}' then
    start_version := parked.start_version;
    opened := parked.opened;
    insert into agentrl.open_request (request, run, worker, start_version, trajectories)
    values (request_, run_, worker_, start_version, opened);
    return;
  end if;
  select * into room from agentrl.room_v1(r, engine_version_);
  left_ := least(n_, room.by_lag, room.by_target, room.by_running);
  opened := agentrl.serve_retries_v1(r, null, greatest(left_, 0), start_version, worker_, lineage);
  if opened <> '{}' then
    -- A retry used no capacity where its group has enough members without it.
    select * into room from agentrl.room_v1(r, engine_version_);
    left_ := least(n_ - cardinality(opened), room.by_lag, room.by_target, room.by_running);
  end if;
  for g in select id from agentrl.grp where run = run_ and state = 'open' and next_seat < size order by created_at, id loop
    exit when charged >= left_;
    served := agentrl.serve_seats_v1(r, g, left_ - charged, r.group_size, start_version, worker_, lineage);
    opened := opened || served;
    charged := charged + cardinality(served);
  end loop;
  -- Redundant seats use no capacity: of each group only `size` members are ever trained.
  for g in select id from agentrl.grp where run = run_ and state = 'open' and next_seat >= size and next_seat < size + extra
           order by created_at, id loop
    exit when cardinality(opened) >= n_;
    opened := opened || agentrl.serve_seats_v1(r, g, n_ - cardinality(opened), r.group_size + r.group_extra, start_version, worker_, lineage);
  end loop;
  if exists (select 1 from agentrl.task_cursor where run = run_ and split = 'train' and n > 0) then
    -- What runs gives its place up by itself, so of a new group not all members have to run at once.
    while cardinality(opened) < n_ and charged < left_
      and (r.group_size = 1 or coalesce(least(room.by_lag, room.by_target) - charged >= r.group_size, true)) loop
      served := agentrl.serve_task_v1(
        r, case when room.by_running - charged < r.group_size then least(n_ - cardinality(opened), room.by_running - charged)
           else n_ - cardinality(opened) end, start_version, worker_, lineage);
      opened := opened || served;
      charged := charged + least(cardinality(served), r.group_size);
    end loop;
  elsif opened = '{}' then
    refusal := 'no_tasks';
  end if;
  if opened <> '{}' then
    insert into agentrl.open_request (request, run, worker, start_version, trajectories)
    values (request_, run_, worker_, start_version, opened);
  elsif refusal is null then
    refusal := case when room.by_target < r.group_size then 'target_reached' else 'no_capacity' end;
  end if;
end $$;

-- Marks evaluations finished whose every task is scored or given up. Both counts only grow, so no lock is needed.
create or replace function agentrl.settle_evaluations_v1(run_ bigint) returns void language sql as $$
  update agentrl.evaluation e set finished_at = clock_timestamp()
  where e.run = run_ and e.finished_at is null
    and (select count(*) from agentrl.evaluated where evaluation = e.id)
      + (select count(*) from agentrl.dropped where evaluation = e.id and not retryable) >= e.n
$$;

-- Opens up to n episodes of an evaluation, outside admission: retries, then tasks never opened.
create or replace function agentrl.open_evaluation_v1(
  evaluation_ bigint, worker_ text, request_ uuid, n_ bigint, lineage_ text,
  out refusal text, out run bigint, out start_version bigint, out opened uuid[]) language plpgsql as $$
declare
  e agentrl.evaluation;
  r agentrl.run;
  lineage constant jsonb := lineage_::jsonb;
  earlier agentrl.open_request;
begin
  select * into e from agentrl.evaluation where id = evaluation_;
  if not found then
    perform agentrl.fail_v1('AR009', format('there is no evaluation with id %s', evaluation_));
  end if;
  r := agentrl.hold_run_v1(e.run);
  perform pg_advisory_xact_lock(hashtext('agentrl.admission'), e.run::int);
  earlier := agentrl.earlier_request_v1(request_, e.run, worker_);
  run := e.run;
  start_version := e.version;
  opened := earlier.trajectories;
  if earlier.request is not null then
    return;
  end if;
  perform agentrl.reap_v1(r);
  select * into e from agentrl.evaluation where id = evaluation_ for update;
  opened := agentrl.serve_retries_v1(r, e.id, n_, e.version, worker_, lineage);
  while cardinality(opened) < n_ and e.next_idx < e.n loop
    opened := opened || agentrl.start_episode_v1(
      r, 'eval', e.id, e.version, e.split, e.next_idx, e.next_idx, null, e.next_idx, 1, 0, null,
      format('%s:%s', e.split, e.version), worker_, lineage);
    update agentrl.evaluation set next_idx = next_idx + 1 where id = evaluation_ returning * into e;
  end loop;
  if opened <> '{}' then
    insert into agentrl.open_request (request, run, worker, start_version, trajectories)
    values (request_, e.run, worker_, e.version, opened);
  else
    refusal := 'no_tasks';
  end if;
end $$;

-- The episodes of a request as their worker needs them, in the order of the request.
create or replace function agentrl.opened_v2(run_ bigint, start_version_ bigint, ids uuid[]) returns table (
  trajectory uuid, fence bigint, split text, task_id text, payload json, task_index bigint, seed bigint, start_version bigint,
  purpose text, grp uuid, seat bigint, attempt bigint, n_segments bigint) language sql stable as $$
  select t.id, t.fence, t.split, t.task_id, k.payload, t.task_idx, t.seed, t.start_version, t.purpose, t.grp, t.seat, t.attempt,
         coalesce((select next_seg from agentrl.live l where l.trajectory = t.id), 0)
  from unnest(ids) with ordinality o (id, n)
  join agentrl.trajectory t on t.run = run_ and t.start_version = start_version_ and t.id = o.id
  join agentrl.task k on k.run = run_ and k.split = t.split and k.idx = t.task_idx
  order by o.n
$$;
