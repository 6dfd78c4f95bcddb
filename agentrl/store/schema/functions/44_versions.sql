-- Naming weights. All checks of the fence hold the run row, so no trainer can start between the check and the write.

-- Gives weights the next name. The same uri on the same branch gives the same version, unless that name was burnt.
create or replace function agentrl.stage_version_v1(
  run_ bigint, fence_ bigint, parent_ bigint, updates_ bigint, uri_ text, checksum_ text) returns agentrl.policy_version
language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_trainer_v1(run_, fence_);
  v agentrl.policy_version;
begin
  perform pg_advisory_xact_lock(hashtext('agentrl.version'), run_::int);
  select * into v from agentrl.policy_version
  where run = run_ and branch = r.branch and uri = uri_ and status <> 'failed' and fence = fence_;
  if found then
    if (v.parent, v.updates, v.checksum) is distinct from (parent_, updates_, checksum_) then
      perform agentrl.fail_v1('AR007', format('the weights at %s are version %s already, with other content', uri_, v.version));
    end if;
    return v;
  end if;
  if parent_ is not null and not exists (select 1 from agentrl.policy_version where run = run_ and version = parent_) then
    perform agentrl.fail_v1('AR005', format('parent version %s has no row in run "%s"', parent_, r.name));
  end if;
  if updates_ > (select updates from agentrl.head_v1(run_)) then
    perform agentrl.fail_v1('AR007', format('weights with %s updates can''t be staged: the ledger of run "%s" knows fewer',
                                            updates_, r.name));
  end if;
  select coalesce(max(version) + 1, 0) into v.version from agentrl.policy_version where run = run_;
  perform agentrl.ensure_partitions_v1(run_, v.version);
  insert into agentrl.policy_version (run, version, parent, updates, effective_update, uri, checksum, status, branch, fence)
  values (run_, v.version, parent_, updates_, updates_, uri_, checksum_, 'staged', r.branch, fence_) returning * into v;
  return v;
end $$;

-- Marks a staged version published or failed, with what it cost the trainer; repeating it changes nothing.
create or replace function agentrl.settle_version_v2(
  run_ bigint, fence_ bigint, version_ bigint, status_ text, bytes_ bigint, phases_ text) returns void language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_trainer_v1(run_, fence_);
  v agentrl.policy_version;
begin
  select * into v from agentrl.policy_version where run = run_ and version = version_ for update;
  if not found then
    perform agentrl.fail_v1('AR005', format('version %s has no row in run "%s"', version_, r.name));
  elsif v.status = status_ then
    return;
  elsif v.status <> 'staged' then
    perform agentrl.fail_v1('AR007', format('version %s of run "%s" is %s and can''t become %s', version_, r.name, v.status, status_));
  elsif status_ = 'published' then
    update agentrl.policy_version set status = 'published', published_at = clock_timestamp(), bytes = bytes_, phases = phases_::jsonb
    where run = run_ and version = version_;
  else
    update agentrl.policy_version set status = 'failed', failed_at = clock_timestamp(), bytes = bytes_, phases = phases_::jsonb
    where run = run_ and version = version_;
  end if;
end $$;

-- Records an attempt to load a version into an engine; repeating the newest one changes nothing.
create or replace function agentrl.record_load_v2(
  run_ bigint, engine_ text, version_ bigint, transport_ text, bytes_ bigint, seconds_ double precision, phases_ text, error_ text,
  loader_ text, fence_ bigint, pinned_ boolean) returns void language plpgsql as $$
declare
  outcome_ constant text := case when error_ is null then 'loaded' else 'failed' end;
  newest agentrl.engine_version;
begin
  if not exists (select 1 from agentrl.policy_version where run = run_ and version = version_) then
    perform agentrl.fail_v1('AR005', format('engine %s loaded version %s, which has no row in run %s', engine_, version_, run_));
  end if;
  select * into newest from agentrl.engine_version where run = run_ and engine = engine_ order by id desc limit 1;
  if found and newest.version = version_ and newest.outcome = outcome_ and newest.seconds is not distinct from seconds_ then
    return;
  end if;
  insert into agentrl.engine_version (run, engine, version, outcome, attempt, transport, bytes, seconds, phases, error, loader, fence,
                                      pinned)
  select run_, engine_, version_, outcome_, 1 + count(*), transport_, bytes_, seconds_, phases_::jsonb, error_, loader_, fence_, pinned_
  from agentrl.engine_version where run = run_ and engine = engine_ and version = version_;
end $$;

-- Commits a checkpoint whose files are written; the same uri again gives the first row. Writing takes its time, so later steps may
-- have been committed meanwhile.
create or replace function agentrl.add_checkpoint_v1(
  run_ bigint, fence_ bigint, step_ bigint, updates_ bigint, version_ bigint, uri_ text, checksum_ text)
returns agentrl.checkpoint language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_trainer_v1(run_, fence_);
  c agentrl.checkpoint;
begin
  select * into c from agentrl.checkpoint where run = run_ and uri = uri_;
  if found then
    if (c.step, c.updates, c.version, c.checksum) is distinct from (step_, updates_, version_, checksum_) then
      perform agentrl.fail_v1('AR007', format('checkpoint %s is committed already, with other content', uri_));
    end if;
    return c;
  end if;
  if not exists (select 1 from agentrl.step
                 where run = run_ and step = step_ and updates = updates_ and abandoned_by is null) then
    perform agentrl.fail_v1('AR007', format('the live history of run "%s" has no step %s with %s updates, so no checkpoint of it',
                                            r.name, step_, updates_));
  end if;
  if not exists (select 1 from agentrl.policy_version where run = run_ and version = version_) then
    perform agentrl.fail_v1('AR005', format('version %s has no row in run "%s"', version_, r.name));
  end if;
  insert into agentrl.checkpoint (run, branch, step, updates, version, uri, checksum, fence)
  values (run_, r.branch, step_, updates_, version_, uri_, checksum_, fence_) returning * into c;
  return c;
end $$;

-- Asks for a score of a published version; the same request gives the same evaluation.
create or replace function agentrl.request_evaluation_v1(run_ bigint, version_ bigint, step_ bigint, split_ text, n_ bigint) returns bigint
language plpgsql as $$
declare
  v agentrl.policy_version;
  tasks bigint;
  id_ bigint;
begin
  select * into v from agentrl.policy_version where run = run_ and version = version_;
  if not found then
    perform agentrl.fail_v1('AR005', format('version %s has no row in run %s', version_, run_));
  elsif v.status <> 'published' then
    perform agentrl.fail_v1('AR007', format('version %s of run %s is %s: only a published version can be evaluated', version_, run_, v.status));
  end if;
  perform pg_advisory_xact_lock_shared(hashtext('agentrl.weights'), run_::int);
  -- Retention tests for open evaluations under the same lock: either it sees this one, or this call sees what it removed.
  perform pg_advisory_xact_lock_shared(hashtext('agentrl.retention'), run_::int);
  select id into id_ from agentrl.evaluation where run = run_ and version = version_ and split = split_;
  if found then
    return id_;
  elsif exists (select 1 from agentrl.policy_version where run = run_ and version = version_ and removed_at is not null) then
    perform agentrl.fail_v1('AR009', format('the weights of version %s of run %s were removed, so it can''t be evaluated', version_, run_));
  elsif agentrl.is_retired_v1(run_, version_) then
    perform agentrl.fail_v1('AR009', format('version %s of run %s was removed by retention and can''t be evaluated', version_, run_));
  end if;
  select n into tasks from agentrl.task_cursor where run = run_ and split = split_;
  if tasks is null or tasks < n_ then
    perform agentrl.fail_v1('AR009', format('split "%s" of run %s has %s tasks, %s were asked for', split_, run_, coalesce(tasks, 0), n_));
  end if;
  insert into agentrl.evaluation (run, version, updates, step, split, n) values (run_, version_, v.updates, step_, split_, n_)
  on conflict (run, version, split) do nothing;
  select id into id_ from agentrl.evaluation where run = run_ and version = version_ and split = split_;
  return id_;
end $$;
