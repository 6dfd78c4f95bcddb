-- Weights on their way: what became of each version, what each engine holds, and which files nobody needs any more.

-- What became of each version, in words, with what publishing took and who loaded it; also steps whose weights never got a version.
create or replace view agentrl.v_versions (
  run,              -- The run.
  run_name,         -- Its name.
  version,          -- Name of the weights; NULL: the step changed the weights, and they never got a name.
  parent,           -- Version that these weights continue.
  updates,          -- Policy updates on the lineage of these weights.
  effective_update, -- Where lag counts from.
  status,           -- staged, published or failed; NULL without a name.
  branch,           -- Branch whose trainer made them.
  explanation,      -- What became of it.
  publish_s,        -- Seconds of the trainer from export to the end.
  phases,           -- The same by phase.
  bytes,            -- Size of the file.
  staged_at,        -- When the name was given.
  published_at,     -- When the weights were verified.
  engines,          -- Who loaded it.
  loaded_s,         -- Seconds from the name to the last of these loads.
  failed_loads,     -- Attempts to load it that failed.
  uri,              -- Where the weights lie, or lay.
  removed_at        -- When the file was removed, since nobody needed it any more.
) as
select r.id, r.name, v.version, v.parent, v.updates, v.effective_update, v.status, v.branch,
       case
         when v.status = 'failed' then 'its file did not verify, so the name is burnt'
           || coalesce('; the same weights became version ' || again.version, '; no version took its place')
         when v.status = 'staged' and v.fence = r.trainer_fence and r.trainer_owner is not null then 'is being published'
         when v.status = 'staged' then format('its trainer (fence %s) ended before it was published', v.fence)
           || coalesce('; branch ' || later.branch || ' goes on with version ' || later.version, '; nothing follows it yet')
         when p.uri = v.uri then format('branch %s starts with the weights of version %s (a resume)', v.branch, v.parent)
         when v.effective_update <> v.updates then format('left behind: a resume went back, branch %s goes on with version %s',
                                                           later.branch, later.version)
         when v.parent is null then 'the first weights'
         when p.status = 'failed' then format('the weights of version %s under a new name', v.parent)
         else 'published'
       end || case when v.removed_at is null then '' else '; its file was removed, nobody needed it any more' end,
       (select sum(x.value::double precision) from jsonb_each_text(v.phases) x), v.phases, v.bytes, v.staged_at, v.published_at,
       l.engines, extract(epoch from l.last_at - v.staged_at)::double precision, coalesce(l.failed, 0), v.uri, v.removed_at
from agentrl.policy_version v
join agentrl.run r on r.id = v.run
left join agentrl.policy_version p on p.run = v.run and p.version = v.parent
left join lateral (select n.version from agentrl.policy_version n where n.run = v.run and n.parent = v.version and n.updates = v.updates
                   order by n.version limit 1) again on true
left join lateral (select n.version, n.branch from agentrl.policy_version n where n.run = v.run and n.version > v.version
                   and n.branch > v.branch order by n.version limit 1) later on true
left join lateral (
  select string_agg(distinct e.engine, ', ' order by e.engine) filter (where e.outcome = 'loaded') as engines,
         max(e.loaded_at) filter (where e.outcome = 'loaded') as last_at, count(*) filter (where e.outcome = 'failed') as failed
  from agentrl.engine_version e where e.run = v.run and e.version = v.version) l on true
union all
select r.id, r.name, null, s.trainer_version, s.updates, null, null, s.branch,
       case
         when s.abandoned_by is not null then format('step %s was committed, its trainer ended before the weights got a name; branch %s '
                                                     'goes on without the step', s.step, s.abandoned_by)
         when s.fence = r.trainer_fence and r.trainer_owner is not null then format('step %s is committed, its weights are being exported',
                                                                                    s.step)
         else format('step %s is committed, its trainer ended before the weights got a name; a resume goes back to a checkpoint', s.step)
       end, null, null, null, null, null, null, null, 0, null, null
from agentrl.step s
join agentrl.run r on r.id = s.run
where s.policy_updated and not exists (select 1 from agentrl.policy_version v
                                       where v.run = s.run and v.branch = s.branch and v.updates = s.updates and v.fence = s.fence);

-- What each engine holds, how far it is behind, and what its newest load took.
create or replace view agentrl.v_engines (
  run,             -- The run.
  run_name,        -- Its name.
  engine,          -- Name of the engine process, or URL of the server.
  version,         -- Version that it holds; NULL: none was ever loaded.
  behind,          -- Policy updates that it is behind the newest published version.
  behind_s,        -- Seconds since the first version was published that it does not hold; NULL when it is not behind.
  pinned,          -- Whether it stays with the version it evaluates.
  loader,          -- Process that brought the weights.
  loaded_at,       -- When.
  transport,       -- file, disk, tensor or distributed.
  seconds,         -- Wall time of that load.
  phases,          -- The same by phase.
  bytes,           -- Bytes read or sent.
  attempt,         -- The how many-th attempt at this version it was.
  loads,           -- Loads that it ever did.
  failed,          -- Attempts that failed since the newest load.
  last_error       -- Why the newest of these failed.
) as
select r.id, r.name, e.engine, held.version,
       case when held.version is not null then greatest(newest.updates - held.effective_update, 0) end,
       case when newest.updates > held.effective_update then extract(epoch from now() - (
         select min(n.published_at) from agentrl.policy_version n where n.run = r.id and n.status = 'published'
           and n.version > held.version and n.updates > held.effective_update))::double precision end,
       e.pinned, coalesce(e.loader, case when e.fence is not null then r.trainer_owner end, e.engine), e.loaded_at, e.transport, e.seconds,
       e.phases, e.bytes, e.attempt, c.loads, c.failed, c.last_error
from (select distinct on (run, engine) * from agentrl.engine_version
      order by run, engine, outcome = 'loaded' desc, id desc) e
join agentrl.run r on r.id = e.run
left join agentrl.policy_version held on e.outcome = 'loaded' and held.run = e.run and held.version = e.version
left join lateral (select n.updates from agentrl.policy_version n where n.run = r.id and n.status = 'published'
                   order by n.version desc limit 1) newest on true
cross join lateral (
  select count(*) filter (where x.outcome = 'loaded') as loads,
         count(*) filter (where x.outcome = 'failed' and x.id >= e.id) as failed,
         (array_agg(x.error order by x.id desc) filter (where x.outcome = 'failed' and x.id >= e.id))[1] as last_error
  from agentrl.engine_version x where x.run = e.run and x.engine = e.engine) c;

-- Engines whose process is alive: who renewed a lease, opened an episode or loaded weights within a lease's time.
create or replace function agentrl.engines_alive_v1(run_ bigint) returns setof agentrl.v_engines language sql stable as $$
  select e.* from agentrl.v_engines e
  where e.run = run_ and exists (
    select 1 from agentrl.v_workers w join agentrl.run r on r.id = w.run
    where w.run = run_ and w.worker = e.loader and not w.lapsed and w.silent_s < extract(epoch from r.lease))
$$;

-- Engines that are alive and more than over_ policy updates behind the newest published version.
create or replace function agentrl.lagging_v1(run_ bigint, over_ bigint)
returns table (engine text, version bigint, behind bigint, behind_s double precision, error text) language plpgsql stable as $$
begin
  if exists (select 1 from agentrl.v_engines e where e.run = run_ and e.behind > over_ and not e.pinned) then
    return query select e.engine, e.version, e.behind, e.behind_s, e.last_error from agentrl.engines_alive_v1(run_) e
                 where e.behind > over_ and not e.pinned order by e.behind desc, e.engine;
  end if;
end $$;

-- Where the weights lie that somebody may still load: the newest keep_ published versions and all between and after them, what living
-- engines hold, the first ones, those of kept checkpoints on the live history and of unfinished evaluations.
create or replace function agentrl.needed_weights_v1(run_ bigint, keep_ bigint) returns setof text language sql stable as $$
  select v.uri from agentrl.policy_version v
  where v.run = run_ and v.removed_at is null and (
    v.version >= coalesce((select n.version from agentrl.policy_version n where n.run = run_ and n.status = 'published'
                           order by n.version desc offset keep_ - 1 limit 1), 0)
    or v.version = (select min(n.version) from agentrl.policy_version n where n.run = run_ and n.updates = 0 and n.status <> 'failed')
    or v.version in (select e.version from agentrl.engines_alive_v1(run_) e)
    or v.version in (select c.version from agentrl.checkpoint c where c.run = run_ and c.abandoned_by is null and c.removed_at is null)
    or v.version in (select e.version from agentrl.evaluation e where e.run = run_ and e.finished_at is null))
$$;

-- Marks weights as removed and gives the uris whose files may go: all of uris_ but those that somebody needs.
create or replace function agentrl.retire_weights_v1(run_ bigint, fence_ bigint, keep_ bigint, uris_ text[]) returns setof text
language plpgsql as $$
declare
  free text[];
begin
  perform agentrl.hold_trainer_v1(run_, fence_);
  -- Requests for evaluations take it shared: either this sees them, or they see what was removed.
  perform pg_advisory_xact_lock(hashtext('agentrl.weights'), run_::int);
  select coalesce(array_agg(u), '{}') into free from unnest(uris_) u where u not in (select agentrl.needed_weights_v1(run_, keep_));
  update agentrl.policy_version set removed_at = clock_timestamp() where run = run_ and uri = any (free) and removed_at is null;
  return query select unnest(free);
end $$;

-- Marks all checkpoints but the keep_ newest on the live history as removed; gives the uris of those that stay.
create or replace function agentrl.retire_checkpoints_v1(run_ bigint, fence_ bigint, keep_ bigint) returns setof text
language plpgsql as $$
begin
  perform agentrl.hold_trainer_v1(run_, fence_);
  update agentrl.checkpoint set removed_at = clock_timestamp()
  where run = run_ and removed_at is null and id not in (
    select k.id from agentrl.checkpoint k where k.run = run_ and k.abandoned_by is null and k.removed_at is null
    order by k.step desc, k.id desc limit keep_);
  return query select c.uri from agentrl.checkpoint c where c.run = run_ and c.removed_at is null;
end $$;
