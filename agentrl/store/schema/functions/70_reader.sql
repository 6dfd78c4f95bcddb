-- The role agentrl_reader: reads everything and writes nothing. It can't log in until an administrator lets it (alter role
-- agentrl_reader login password '...'); its time limits hold for such a login, and every command that reads sets its own.

-- Roles belong to the whole server: another database may have made it, or be making it now.
do $$
begin
  create role agentrl_reader nologin;
  alter role agentrl_reader set statement_timeout = '30s';
  alter role agentrl_reader set idle_in_transaction_session_timeout = '60s';
  alter role agentrl_reader set default_transaction_read_only = on;
exception
  when duplicate_object or unique_violation then null;
  when insufficient_privilege then
    raise notice 'user % may not create roles: there is no role agentrl_reader, and reading commands run as this user', current_user;
end $$;

-- Writing functions are for the owner and those whom it trusts. The reader sees all tables and views, those of later, too.
do $$
declare
  f regprocedure;
begin
  for f in select oid::regprocedure from pg_proc where pronamespace = 'agentrl'::regnamespace and provolatile = 'v' loop
    execute format('revoke execute on function %s from public', f);
  end loop;
  if not exists (select 1 from pg_roles where rolname = 'agentrl_reader') then
    return;
  end if;
  grant usage on schema agentrl to agentrl_reader;
  grant select on all tables in schema agentrl to agentrl_reader;
  alter default privileges in schema agentrl grant select on tables to agentrl_reader;
  if not pg_has_role(current_user, 'agentrl_reader',
                     case when current_setting('server_version_num')::int < 160000 then 'member' else 'set' end) then
    begin
      grant agentrl_reader to current_user;
    exception when insufficient_privilege or invalid_grant_operation or unique_violation then
      raise notice 'user % may not act as agentrl_reader (%): reading commands run as this user', current_user, sqlerrm;
    end;
  end if;
end $$;
