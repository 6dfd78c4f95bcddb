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

-- A mask over n action tokens as an array of 0 and 1: one byte a token, and NULL means all.
create or replace function agentrl.mask(b bytea, n bigint) returns int2[] language plpgsql immutable parallel safe as $$
declare
  d bytea := b || ''::bytea;
begin
  if b is null then
    return array_fill(1::int2, array[n::int]);
  end if;
  return (select coalesce(array_agg(get_byte(d, i)::int2 order by i), '{}') from generate_series(0, length(d) - 1) i);
end $$;

-- The number itself, or NULL when it is NaN or infinite: averages are taken of this.
create or replace function agentrl.finite(x double precision) returns double precision language sql immutable parallel safe as $$
  select case when x > '-infinity' and x < 'infinity' then x end
$$;

-- A number of a JSON object by its name, such as a metric of a step; NULL when it is absent or no number.
create or replace function agentrl.number(doc jsonb, name text) returns double precision language sql immutable parallel safe as $$
  select case when jsonb_typeof(doc -> name) = 'number' then (doc ->> name)::double precision end
$$;

-- A JSON value as a number; NULL when it is none.
create or replace function agentrl.as_number(value jsonb) returns double precision language sql immutable parallel safe as $$
  select case when jsonb_typeof(value) = 'number' then value::double precision end
$$;

-- Segments with decoded arrays and shortened texts, for reading by people.
create or replace view agentrl.segment_debug (
  run,            -- The run that created it.
  trajectory,     -- The trajectory.
  seg,            -- Position in the trajectory, from 0.
  context,        -- Context number; grows when history was compacted or rewritten.
  versions,       -- Distinct policy versions of the action tokens.
  n_obs,          -- New observation tokens.
  n_act,          -- Action tokens.
  finish_reason,  -- Why the engine stopped.
  reward,         -- Reward of the turn itself.
  ids,            -- Token ids: observation, then action.
  logprobs,       -- Log-probs of the action tokens.
  token_versions, -- Policy version of each action token.
  loss_mask,      -- For each action token 1 when it trains, else 0.
  unit_starts,    -- For each action token 1 when a unit of credit begins with it, else 0; NULL when the turn is a unit.
  observation,    -- The first 400 characters of the observation.
  action,         -- The first 400 characters of the action.
  tool_calls,     -- Parsed calls.
  results,        -- The first 400 characters of the results.
  queue_s,        -- Seconds waited for the engine.
  generate_s,     -- Seconds of generation.
  tool_s,         -- Seconds of tool execution.
  stored_at       -- When it was stored.
) as
select run, trajectory, seg, context, versions, n_obs, n_act, finish_reason, reward, agentrl.i4(ids), agentrl.f4(logprobs),
       coalesce(agentrl.i4(token_versions)::bigint[], array_fill(versions[1], array[n_act::int])), agentrl.mask(loss_mask, n_act),
       case when unit_starts is not null then agentrl.mask(unit_starts, n_act) end, left(observation_text, 400), left(action_text, 400), tool_calls, left(tool_results::text, 400), queue_s, generate_s, tool_s,
       stored_at
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
