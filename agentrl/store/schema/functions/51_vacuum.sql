-- Forgetting what retention left of trajectories that are gone. What the books need stays: consumed, dropped, evaluated, imported.

-- Trajectories that a run had in its ledger and that retention removed before a moment.
create or replace function agentrl.removed_before_v1(run_ bigint, before_ timestamptz) returns table (trajectory uuid)
language sql stable as $$
  select x.trajectory from (
    select coalesce(source, run), start_version, trajectory from agentrl.consumed where run = run_
    union
    select coalesce(source, run), start_version, trajectory from agentrl.dropped where run = run_
    union
    select run, start_version, trajectory from agentrl.evaluated where run = run_) x (run, start_version, trajectory)
  join agentrl.retired q on q.run = x.run and q.low <= x.start_version and x.start_version < q.high
  where q.at < before_
$$;

-- Deletes their moves and verdicts (scores of evaluations stay), ended groups without a trajectory, and loads of weights that were
-- followed by another; gives the numbers of rows.
create or replace function agentrl.vacuum_v1(
  run_ bigint, before_ timestamptz, out moves bigint, out verdicts bigint, out groups bigint, out loads bigint) language plpgsql as $$
begin
  with gone as materialized (select g.trajectory from agentrl.removed_before_v1(run_, before_) g),
       m as (delete from agentrl.event e using gone g where e.run = run_ and e.trajectory = g.trajectory returning 1),
       v as (delete from agentrl.reward w using gone g
             where w.run = run_ and w.trajectory = g.trajectory
               and not exists (select 1 from agentrl.evaluated x where x.run = run_ and x.trajectory = w.trajectory) returning 1),
       s as (delete from agentrl.reward w  -- of sub-agents, which are in no book
             where w.run = run_ and w.at < before_
               and not exists (select 1 from agentrl.trajectory x where x.run = run_ and x.id = w.trajectory)
               and not exists (select 1 from agentrl.consumed x where x.run = run_ and x.trajectory = w.trajectory)
               and not exists (select 1 from agentrl.dropped x where x.run = run_ and x.trajectory = w.trajectory)
               and not exists (select 1 from agentrl.evaluated x where x.run = run_ and x.trajectory = w.trajectory) returning 1)
  select (select count(*) from m), (select count(*) from v) + (select count(*) from s) into moves, verdicts;
  with d as (delete from agentrl.grp g
             where g.run = run_ and g.state <> 'open' and g.created_at < before_
               and not exists (select 1 from agentrl.trajectory t where t.run = run_ and t.grp = g.id) returning 1)
  select count(*) into groups from d;
  with d as (delete from agentrl.engine_version e
             where e.run = run_ and e.loaded_at < before_
               and exists (select 1 from agentrl.engine_version n where n.run = run_ and n.engine = e.engine and n.id > e.id and n.outcome = 'loaded')
             returning 1)
  select count(*) into loads from d;
end $$;
