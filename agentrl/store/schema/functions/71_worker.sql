-- The role agentrl_worker: what rollout workers, reward workers and trainers do, for logins that don't own the schema (grant
-- agentrl_worker to NAME). It deletes from the queue only: what was recorded stays, and the schema stays as it is.

-- Roles belong to the whole server: another database may have made it, or be making it now.
do $$
begin
  create role agentrl_worker nologin;
exception
  when duplicate_object or unique_violation then null;
  when insufficient_privilege then
    raise notice 'user % may not create roles: there is no role agentrl_worker', current_user;
end $$;

-- Retention and vacuum are left to the owner.
do $$
begin
  if not exists (select 1 from pg_roles where rolname = 'agentrl_worker') then
    return;
  end if;
  grant usage on schema agentrl to agentrl_worker;
  grant select, insert, update on all tables in schema agentrl to agentrl_worker;
  if to_regclass('agentrl.alembic_version') is not null then
    revoke insert, update on agentrl.alembic_version from agentrl_worker;
  end if;
  grant delete on agentrl.live, agentrl.grade_job, agentrl.graded, agentrl.ready, agentrl.lease to agentrl_worker;
  grant usage on sequence agentrl.fence to agentrl_worker;
  grant execute on all functions in schema agentrl to agentrl_worker;
  revoke execute on function agentrl.retire_v1, agentrl.prune_requests_v1, agentrl.vacuum_v1 from agentrl_worker;
  alter default privileges in schema agentrl grant select on tables to agentrl_worker;
end $$;
