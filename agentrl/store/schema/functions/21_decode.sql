-- Reading raw buffers in SQL. The forced copy (d) decompresses the value once instead of once per byte.

-- int32 little-endian buffer as an array.
create or replace function agentrl.i4(b bytea) returns int4[] language plpgsql immutable strict parallel safe as $$
declare
  d bytea := b || ''::bytea;
begin
  return (select coalesce(array_agg(get_byte(d, i) | (get_byte(d, i + 1) << 8) | (get_byte(d, i + 2) << 16)
                                    | (get_byte(d, i + 3) << 24) order by i), '{}')
          from generate_series(0, length(d) - 4, 4) i);
end $$;

-- float32 little-endian buffer as an array, exact to the last bit.
create or replace function agentrl.f4(b bytea) returns float4[] language plpgsql immutable strict parallel safe as $$
declare
  d bytea := b || ''::bytea;
begin
  return (
    select coalesce(array_agg(
      case when u & 2147483647 = 0 then 0::float4
      else ((case when u < 0 then -1 else 1 end) * case (u >> 23) & 255
        when 0 then (u & 8388607) * 1.4012984643248171e-45::float8
        when 255 then case when u & 8388607 = 0 then 'infinity'::float8 else 'nan'::float8 end
        else (8388608 + (u & 8388607)) * power(2::float8, ((u >> 23) & 255) - 150) end)::float4 end order by i), '{}')
    from (select i, get_byte(d, i) | (get_byte(d, i + 1) << 8) | (get_byte(d, i + 2) << 16) | (get_byte(d, i + 3) << 24) u
          from generate_series(0, length(d) - 4, 4) i) s);
end $$;

-- Segments with decoded arrays and shortened texts, for reading by people.
create or replace view agentrl.segment_debug as
select run, trajectory, seg, context, versions, n_obs, n_act, finish_reason, reward, agentrl.i4(ids) as ids,
       agentrl.f4(logprobs) as logprobs,
       coalesce(agentrl.i4(token_versions)::bigint[], array_fill(versions[1], array[n_act::int])) as token_versions,
       case when loss_mask is null then array_fill(1::int2, array[n_act::int])
            else (select array_agg(get_byte(loss_mask, i)::int2 order by i) from generate_series(0, n_act::int - 1) i) end as loss_mask,
       left(observation_text, 400) as observation, left(action_text, 400) as action, tool_calls, left(tool_results::text, 400) as results,
       queue_s, generate_s, tool_s, stored_at
from agentrl.segment;

-- The id of a run given by id, by name or as "latest".
create or replace function agentrl.find_run_v1(run_ text) returns bigint language plpgsql stable as $$
declare
  id_ bigint;
begin
  select id into id_ from agentrl.run
  where name = run_ or id::text = run_ or run_ = 'latest'
  order by (name = run_) desc, id desc limit 1;
  if id_ is null then
    perform agentrl.fail_v1('AR009', format('there is no run "%s"', run_));
  end if;
  return id_;
end $$;
