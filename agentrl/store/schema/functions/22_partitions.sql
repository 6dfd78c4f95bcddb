-- Partitions of the wide tables, by run and bucket of start versions.

-- Creates the partitions for one bucket of versions. LIKE + CHECK + ATTACH takes no lock that stops writers, and lock_timeout
-- keeps a forgotten transaction from making anybody queue behind us.
create or replace function agentrl.add_partitions_v1(run_ bigint, bucket bigint) returns void language plpgsql as $$
declare
  width constant bigint := 64;
  low bigint := bucket * width;
  high bigint := low + width;
  parent text;
  part text;
begin
  perform pg_advisory_xact_lock(hashtext('agentrl.partitions'), run_::int);
  foreach parent in array array['trajectory', 'segment', 'trained'] loop
    part := format('%s_r%s_v%s', parent, run_, low);
    continue when to_regclass(format('agentrl.%I', part)) is not null;
    perform set_config('lock_timeout', '2s', true);
    execute format('create table agentrl.%I (like agentrl.%I including all)', part, parent);
    execute format('alter table agentrl.%I add check (run = %s and start_version >= %s and start_version < %s)',
                   part, run_, low, high);
    execute format('alter table agentrl.%I attach partition agentrl.%I for values from (%s, %s) to (%s, %s)',
                   parent, part, run_, low, run_, high);
    perform set_config('lock_timeout', '0', true);
  end loop;
end $$;

-- Makes sure that a version has its partitions, and those that come soon; only the former may fail the caller.
create or replace function agentrl.ensure_partitions_v1(run_ bigint, version_ bigint) returns void language plpgsql as $$
begin
  perform agentrl.add_partitions_v1(run_, version_ / 64);
  begin
    perform agentrl.add_partitions_v1(run_, (version_ + 16) / 64);
  exception when lock_not_available then
    raise notice 'partitions of run % after version % wait for a lock; the next version tries again', run_, version_;
  end;
end $$;
