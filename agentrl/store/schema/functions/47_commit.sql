-- Committing a step: ledger, drops, releases and lease deletion in one transaction.

-- Checks that the named leases are whole claims, all held; raises otherwise.
create or replace function agentrl.check_claim_v1(r agentrl.run, fence_ bigint, items_ uuid[], tokens_ bigint[]) returns void
language plpgsql as $$
declare
  held bigint;
  whole bigint;
begin
  -- A lease that lapses from here on is not reaped before the step is in the ledger.
  perform 1 from agentrl.lease where run = r.id and item = any (items_) for update;
  held := agentrl.held_v1(r.id, fence_, items_, tokens_);
  if held <> cardinality(items_) then
    perform agentrl.fail_v1('AR008', format('the step names %s items of run "%s", but %s are leased to this trainer: resume',
                                            cardinality(items_), r.name, held));
  end if;
  select count(*) into whole from agentrl.lease where run = r.id and token = any (tokens_);
  if whole <> held then
    perform agentrl.fail_v1('AR008', format('the step leaves %s claimed items of run "%s" out: each must be consumed, dropped or released',
                                            whole - held, r.name));
  end if;
end $$;

-- Moves leased items, which were checked, into the ledger of a step that has its row.
create or replace function agentrl.consume_v1(r agentrl.run, step_ bigint, updates_ bigint, fence_ bigint, items_ uuid[])
returns void language plpgsql as $$
declare
  l record;
begin
  select item, updates_ - oldest_update as lag into l from agentrl.lease
  where run = r.id and item = any (items_) and updates_ - oldest_update > r.lag_bound limit 1;
  if found then
    perform agentrl.fail_v1('AR008', format('item %s has lag %s, over the bound %s of run "%s": resume', l.item, l.lag,
                                            r.lag_bound, r.name));
  end if;
  with gone as (
    delete from agentrl.lease where run = r.id and item = any (items_) returning *
  ), members as (
    select g.item, m.id, m.start_version, g.token, g.oldest_update, g.source,
           agentrl.item_lag_v1(r, updates_, g.oldest_update, g.trajectories, g.start_versions, g.source) as lag
    from gone g, unnest(g.trajectories, g.start_versions) m (id, start_version)
  ), moves as (
    insert into agentrl.event (run, trajectory, from_place, to_place, fence, actor, why)
    select r.id, id, 'lease', 'consumed', fence_, r.trainer_owner, format('step %s', step_) from members
  )
  insert into agentrl.consumed (run, branch, step, item, trajectory, start_version, token, oldest_update, lag, source)
  select r.id, r.branch, step_, item, id, start_version, token, oldest_update, lag, source from members;
end $$;

-- Commits a step. `fates` holds 'consumed', 'released' or a drop reason per item. The same batch hash gives the first result.
create or replace function agentrl.commit_step_v1(
  run_ bigint, fence_ bigint, step_ bigint, policy_updated_ boolean, trainer_version_ bigint, batch_hash_ text,
  denominators_ text, metrics_ text, items_ uuid[], tokens_ bigint[], fates text[],
  out step bigint, out updates bigint, out repeated boolean, out branch bigint) language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_trainer_v1(run_, fence_);
  h record;
  s agentrl.step;
  l record;
  consumed_ uuid[];
  others uuid[];
begin
  branch := r.branch;
  perform pg_advisory_xact_lock(hashtext('agentrl.commit'), run_::int);
  select * into s from agentrl.step x where x.run = run_ and x.step = step_ and x.abandoned_by is null;
  if found then
    if s.batch_hash <> batch_hash_ then
      perform agentrl.fail_v1('AR008', format('step %s of run "%s" is committed with another batch: resume', step_, r.name));
    end if;
    step := s.step; updates := s.updates; repeated := true;
    return;
  end if;
  select * into h from agentrl.head_v1(run_);
  if step_ <> h.step + 1 then
    perform agentrl.fail_v1('AR008', format('step %s does not follow step %s of run "%s": resume', step_, h.step, r.name));
  end if;
  if not exists (select 1 from agentrl.policy_version v where v.run = run_ and v.version = trainer_version_) then
    perform agentrl.fail_v1('AR005', format('trainer version %s has no row in run "%s"', trainer_version_, r.name));
  end if;
  perform agentrl.check_claim_v1(r, fence_, items_, tokens_);
  step := step_; updates := h.updates + policy_updated_::int; repeated := false;
  select coalesce(array_agg(item) filter (where fate = 'consumed'), '{}'),
         coalesce(array_agg(item) filter (where fate <> 'consumed'), '{}')
  into consumed_, others from unnest(items_, fates) m (item, fate);
  insert into agentrl.step (run, branch, step, updates, policy_updated, trainer_version, batch_hash, n_items, n_trajectories,
                            denominators, metrics, fence)
  select run_, r.branch, step_, h.updates + policy_updated_::int, policy_updated_, trainer_version_, batch_hash_, count(*),
         coalesce(sum(q.n_traj), 0), denominators_::jsonb, metrics_::jsonb, fence_
  from agentrl.lease q where q.run = run_ and q.item = any (consumed_);
  perform agentrl.consume_v1(r, step_, h.updates, fence_, consumed_);
  for l in
    delete from agentrl.lease q where q.run = run_ and q.item = any (others)
    returning q.*, fates[array_position(items_, q.item)] as fate
  loop
    if l.fate = 'released' then
      perform agentrl.to_ready_v1(run_, l.item, l.trajectories, l.start_versions, l.attempts, l.ready_at, 'lease', fence_,
                                  r.trainer_owner, 'released by the trainer', l.source);
    else
      perform agentrl.drop_item_v1(run_, l.trajectories, l.start_versions, 'lease', l.fate, format('step %s', step_), fence_,
                                   r.trainer_owner, l.source);
    end if;
  end loop;
end $$;

-- Stores what a step used of one trajectory, or of a sub-agent of one that it consumed.
create or replace function agentrl.add_trained_v2(
  run_ bigint, branch_ bigint, step_ bigint, trajectory_ uuid, logprobs_ bytea, values_ bytea, advantages_ bytea, returns_ bytea,
  local_advantages_ bytea) returns void language plpgsql as $$
declare
  c agentrl.consumed;
  root_ uuid;
  verdict bigint;
begin
  select * into c from agentrl.consumed x
  where x.run = run_ and x.branch = branch_ and x.step = step_ and x.trajectory = trajectory_;
  if found then
    select max(id) into verdict from agentrl.reward where trajectory = trajectory_;
  else
    select root into root_ from agentrl.trajectory where run = run_ and id = trajectory_;
    if not found then  -- of a run that was imported from
      select root into root_ from agentrl.trajectory where id = trajectory_;
    end if;
    select * into c from agentrl.consumed x
    where x.run = run_ and x.branch = branch_ and x.step = step_ and x.trajectory = root_;
    if not found then
      perform agentrl.fail_v1('AR006', format('trained.trajectory: %s was not consumed by step %s', trajectory_, step_));
    end if;
    verdict := agentrl.verdict_v1(coalesce(c.source, run_), trajectory_);
  end if;
  insert into agentrl.trained (run, start_version, trajectory, branch, step, reward_id, logprobs, "values", advantages, returns,
    local_advantages)
  values (run_, case when c.source is null then c.start_version else (select s.trainer_version from agentrl.step s
            where s.run = run_ and s.branch = branch_ and s.step = step_) end, trajectory_, branch_, step_,
          verdict, logprobs_, values_, advantages_, returns_, local_advantages_);
end $$;

-- Stores which tokens of a trajectory a step left out of the loss because they were out of range.
create or replace function agentrl.add_masked_v1(
  run_ bigint, branch_ bigint, step_ bigint, trajectory_ uuid, versions_ bigint[], tokens_ bigint) returns void language plpgsql as $$
begin
  update agentrl.consumed c set masked_versions = versions_, masked_tokens = tokens_
  from agentrl.run r
  where r.id = c.run and r.staleness_mode = 'segment_mask' and c.run = run_ and c.branch = branch_ and c.step = step_
    and c.trajectory = trajectory_;
  if not found then
    perform agentrl.fail_v1('AR006', format('masked.trajectory: %s was not consumed by step %s of a run that masks', trajectory_, step_));
  end if;
end $$;
