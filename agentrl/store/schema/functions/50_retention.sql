-- Retention: which buckets of versions may go, and the record of those that went. Detaching and dropping their tables is done by
-- the client, since the one can't happen in a transaction and the other must not wait for a reader.

-- Whether retention removed the trajectories that started on a version.
create or replace function agentrl.is_retired_v1(run_ bigint, version_ bigint) returns boolean language sql stable as $$
  select exists (select 1 from agentrl.retired where run = run_ and low <= version_ and version_ < high)
$$;

-- The tables of a run's buckets: attached to their parent, half detached (pending), or alone.
create or replace function agentrl.bucket_tables_v1(run_ bigint) returns table (low bigint, parent text, part text, state text, bytes bigint)
language sql stable as $$
  select substring(c.relname from '_v([0-9]+)$')::bigint, substring(c.relname from '^[a-z]+'), c.relname::text,
         case when i.inhrelid is null then 'alone' when i.inhdetachpending then 'pending' else 'attached' end,
         pg_total_relation_size(c.oid)
  from pg_class c left join pg_inherits i on i.inhrelid = c.oid
  where c.relnamespace = 'agentrl'::regnamespace and c.relkind = 'r'
    and c.relname ~ format('^(trajectory|segment|trained)_r%s_v[0-9]+$', run_)
$$;

-- The first start version that stays: of the newest keep_ published versions, and never newer than what a trainer may hold.
-- NULL while nothing is that old.
create or replace function agentrl.first_kept_v1(run_ bigint, keep_ bigint) returns bigint language sql stable as $$
  select case when kept.version is not null then least(kept.version, (
    select coalesce(max(s.trainer_version), 0) from agentrl.step s where s.run = run_ and s.abandoned_by is null)) end
  from (select (select v.version from agentrl.policy_version v where v.run = run_ and v.status = 'published'
                order by v.version desc offset keep_ - 1 limit 1) as version) kept
$$;

-- Who still needs a range of start versions, in words; NULL when nobody does. One statement, so that a row which moves
-- meanwhile is seen in one of its places. A step after the newest checkpoint would be taken again by a resume.
create or replace function agentrl.needed_v1(run_ bigint, low_ bigint, high_ bigint) returns text language sql stable as $$
  with consumer (run, saved) as (
    select r.id, coalesce((select max(c.step) from agentrl.checkpoint c where c.run = r.id and c.abandoned_by is null), 0)
    from agentrl.run r where r.id = run_ or r.id in (select i.run from agentrl.import i where i.source = run_)
  ), need (run, what) as (
    select run, 'running' from agentrl.live where run = run_ and start_version >= low_ and start_version < high_
    union all
    select run, 'waiting for a verdict' from agentrl.grade_job where run = run_ and start_version >= low_ and start_version < high_
    union all
    select run, 'waiting for their group' from agentrl.graded where run = run_ and start_version >= low_ and start_version < high_
    union all
    select q.run, 'ready' from agentrl.ready q, unnest(q.start_versions) v
    where coalesce(q.source, q.run) = run_ and v >= low_ and v < high_
    union all
    select q.run, 'leased' from agentrl.lease q, unnest(q.start_versions) v
    where coalesce(q.source, q.run) = run_ and v >= low_ and v < high_
    union all
    select run, 'to be tried again' from agentrl.dropped
    where run = run_ and retryable and retried_by is null and start_version >= low_ and start_version < high_
    union all
    select k.run, 'trained after the newest checkpoint' from consumer c
    join agentrl.consumed k on k.run = c.run and k.step > c.saved
    where k.abandoned_by is null and coalesce(k.source, k.run) = run_ and k.start_version >= low_ and k.start_version < high_
    union all
    select e.run, format('of the unfinished evaluation of version %s', e.version) from agentrl.evaluation e
    where e.run = run_ and e.finished_at is null and e.version >= low_ and e.version < high_
      and (select count(*) from agentrl.evaluated where evaluation = e.id)
        + (select count(*) from agentrl.dropped where evaluation = e.id and not retryable) < e.n
  )
  select string_agg(format('%s %s in run "%s"', n, what, name), ', ' order by name, what)
  from (select run, what, count(*) as n from need group by run, what) x join agentrl.run r on r.id = x.run
$$;

-- What retention would do: each bucket that is old enough, what it holds, who still needs it, and whether it is retired already
-- and only its tables are left.
create or replace function agentrl.retention_v1(run_ bigint, keep_ bigint) returns table (
  low bigint, high bigint, created bigint, evaluated bigint, bytes bigint, needed text, retired boolean) language sql stable as $$
  select b.low, b.high, coalesce(q.created, n.created), coalesce(q.evaluated, n.evaluated), coalesce(q.bytes, b.bytes),
         case when q.run is null then agentrl.needed_v1(run_, b.low, b.high) end, q.run is not null
  from (select t.low, t.low + agentrl.bucket_width_v1() as high, sum(t.bytes)::bigint as bytes
        from agentrl.bucket_tables_v1(run_) t group by t.low) b
  left join agentrl.retired q on q.run = run_ and q.low = b.low
  cross join lateral (
    select count(*) filter (where t.purpose = 'train') as created, count(*) filter (where t.purpose = 'eval') as evaluated
    from agentrl.trajectory t where t.run = run_ and t.start_version >= b.low and t.start_version < b.high and t.root is null
      and q.run is null) n
  where q.run is not null or b.high <= agentrl.first_kept_v1(run_, keep_)
  order by b.low
$$;

-- Records a bucket as removed, unless somebody needs it: then says who. From here on conservation counts it by this record.
create or replace function agentrl.retire_v1(run_ bigint, low_ bigint, keep_ bigint) returns text language plpgsql as $$
declare
  plan record;
begin
  -- Not waited for: an export may take hours, and nobody may queue behind us. The run rows then keep trainer starts from returning
  -- what they trained, and admission keeps episodes from opening.
  if not pg_try_advisory_xact_lock(hashtext('agentrl.retention'), run_::int) then
    raise exception using errcode = 'lock_not_available', message = format('run %s is being imported from or exported', run_);
  end if;
  perform 1 from agentrl.run where id = run_ or id in (select i.run from agentrl.import i where i.source = run_)
  order by id for key share;
  perform pg_advisory_xact_lock(hashtext('agentrl.admission'), run_::int);
  select * into plan from agentrl.retention_v1(run_, keep_) p where p.low = low_;
  if not found then
    return 'young again: its versions are among those to keep';
  elsif plan.needed is null and not plan.retired then
    insert into agentrl.retired (run, low, high, created, evaluated, bytes)
    values (run_, low_, plan.high, plan.created, plan.evaluated, plan.bytes);
  end if;
  return plan.needed;
end $$;

-- Forgets the requests of workers that can't be repeated any more; gives their number.
create or replace function agentrl.prune_requests_v1(run_ bigint) returns bigint language sql as $$
  with gone as (delete from agentrl.open_request where run = run_ and at < now() - interval '1 day' returning 1)
  select count(*) from gone
$$;

-- The record of the bucket with which retention removed a trajectory; no row when it did not.
create or replace function agentrl.removed_v1(trajectory_ uuid) returns setof agentrl.retired language sql stable as $$
  with ended (run, start_version) as (
    select coalesce(x.source, x.run), x.start_version from agentrl.consumed x
    where x.run in (select id from agentrl.run) and x.trajectory = trajectory_ and x.abandoned_by is null
    union
    select coalesce(x.source, x.run), x.start_version from agentrl.dropped x
    where x.run in (select id from agentrl.run) and x.trajectory = trajectory_
    union
    select x.run, x.start_version from agentrl.evaluated x
    where x.run in (select id from agentrl.run) and x.trajectory = trajectory_
  )
  select q.* from agentrl.retired q join ended e on e.run = q.run and q.low <= e.start_version and e.start_version < q.high
$$;
