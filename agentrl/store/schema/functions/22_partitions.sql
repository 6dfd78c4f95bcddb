-- Partitions of the wide tables, by run and bucket of start versions.

-- Start versions in a bucket.
create or replace function agentrl.bucket_width_v1() returns bigint language sql immutable as $$ select 64::bigint $$;

-- Creates the table for one bucket, with the CHECK that lets it be attached without a scan; nothing else sees it yet.
create or replace function agentrl.create_partition_v1(run_ bigint, parent text, low_ bigint) returns void language plpgsql as $$
declare
  part constant text := format('%s_r%s_v%s', parent, run_, low_);
begin
  execute format('create table agentrl.%I (like agentrl.%I including all)', part, parent);
  execute format('alter table agentrl.%I add check (run = %s and start_version >= %s and start_version < %s)',
                 part, run_, low_, low_ + agentrl.bucket_width_v1());
end $$;

-- Makes such a table a partition. Waits for no reader, and stops none.
create or replace function agentrl.attach_partition_v1(run_ bigint, parent text, low_ bigint) returns void language plpgsql as $$
begin
  execute format('alter table agentrl.%I attach partition agentrl.%I for values from (%s, %s) to (%s, %s)', parent,
                 format('%s_r%s_v%s', parent, run_, low_), run_, low_, run_, low_ + agentrl.bucket_width_v1());
end $$;

-- Creates the partitions for one bucket of versions. LIKE + CHECK + ATTACH takes no lock that stops writers, and lock_timeout
-- keeps a forgotten transaction from making anybody queue behind us. Runs as the schema's owner, who alone may do it.
create or replace function agentrl.add_partitions_v1(run_ bigint, bucket bigint) returns void language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
  low constant bigint := bucket * agentrl.bucket_width_v1();
  parent text;
begin
  perform pg_advisory_xact_lock(hashtext('agentrl.partitions'), run_::int);
  foreach parent in array array['trajectory', 'segment', 'trained'] loop
    continue when to_regclass(format('agentrl.%I', format('%s_r%s_v%s', parent, run_, low))) is not null;
    perform set_config('lock_timeout', '2s', true);
    perform agentrl.create_partition_v1(run_, parent, low);
    perform agentrl.attach_partition_v1(run_, parent, low);
    perform set_config('lock_timeout', '0', true);
  end loop;
end $$;

-- Makes sure that a version has its partitions, and those that come soon; only the former may fail the caller.
create or replace function agentrl.ensure_partitions_v1(run_ bigint, version_ bigint) returns void language plpgsql as $$
begin
  perform agentrl.add_partitions_v1(run_, version_ / agentrl.bucket_width_v1());
  begin
    perform agentrl.add_partitions_v1(run_, (version_ + 16) / agentrl.bucket_width_v1());
  exception when lock_not_available then
    raise notice 'partitions of run % after version % wait for a lock; the next version tries again', run_, version_;
  end;
end $$;
