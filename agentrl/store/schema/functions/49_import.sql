-- Several runs over the same rows: a run takes stored trajectories of another one, with a ledger of its own.

-- Makes complete trajectories of the source ready for this run: each once, oldest first, whole groups when the run has groups.
create or replace function agentrl.import_v1(
  run_ bigint, source_ bigint, limit_ bigint, min_reward_ float8, max_reward_ float8, success_ boolean, first_step_ bigint,
  last_step_ bigint, out import bigint, out items bigint, out trajectories bigint) language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_run_v1(run_);
  s agentrl.run := agentrl.hold_run_v1(source_);
  c record;
begin
  if run_ = source_ then
    perform agentrl.fail_v1('AR009', format('run "%s" can''t import from itself', r.name));
  elsif r.lag_bound is not null then
    perform agentrl.fail_v1('AR009', format(
      'run "%s" has a lag bound, in which tokens of run "%s" have no place: imports need an unbounded run (staleness.eta=1)', r.name, s.name));
  end if;
  perform pg_advisory_xact_lock(hashtext('agentrl.admission'), run_::int);
  perform pg_advisory_xact_lock_shared(hashtext('agentrl.retention'), source_::int);
  items := 0;
  trajectories := 0;
  insert into agentrl.import (run, source, filter, items, trajectories)
  values (run_, source_, jsonb_build_object('limit', limit_, 'min_reward', min_reward_, 'max_reward', max_reward_, 'success',
          success_, 'first_step', first_step_, 'last_step', last_step_), 0, 0) returning id into import;
  for c in
    select case when r.group_size = 1 then t.id else t.grp end as item, array_agg(t.id order by t.seat) as ids,
           array_agg(t.start_version order by t.seat) as starts
    from agentrl.trajectory t
    left join lateral (select id, value, success from agentrl.reward where trajectory = t.id order by id desc limit 1) w on true
    left join agentrl.consumed k on k.run = source_ and k.trajectory = t.id and k.abandoned_by is null
    where t.run = source_ and t.purpose = 'train' and t.root is null and t.complete and t.outcome in ('graded', 'policy_ended') and t.n_actions > 0
      and (t.outcome <> 'graded' or w.id is not null) and (r.group_size = 1 or t.grp is not null)
      and t.origin = any (r.origins)
      and (min_reward_ is null or w.value >= min_reward_) and (max_reward_ is null or w.value <= max_reward_)
      and (success_ is null or w.success = success_)
      and (first_step_ is null or k.step >= first_step_) and (last_step_ is null or k.step <= last_step_)
      and (r.group_size = 1 or not exists (
        select 1 from agentrl.dropped d where d.run = source_ and d.trajectory = t.id and d.reason = 'superseded'))
      and not exists (select 1 from agentrl.imported i where i.run = run_ and i.trajectory = t.id)
      and not exists (select 1 from agentrl.retired q where q.run = source_ and t.start_version >= q.low and t.start_version < q.high)
    group by 1 having count(*) = r.group_size order by min(t.started_at), 1 limit limit_
  loop
    insert into agentrl.imported (run, trajectory, import) select run_, id, import from unnest(c.ids) id;
    perform agentrl.to_ready_v1(run_, c.item, c.ids, c.starts, 0, clock_timestamp(), null, null, format('import %s', import),
                                format('imported from run "%s"', s.name), source_);
    items := items + 1;
    trajectories := trajectories + cardinality(c.ids);
  end loop;
  update agentrl.import i set items = import_v1.items, trajectories = import_v1.trajectories where i.id = import_v1.import;
end $$;
