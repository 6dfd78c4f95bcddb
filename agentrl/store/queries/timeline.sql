-- name: timeline
-- Everything that happened to one trajectory, in order: moves, turns and verdicts.
select at, what, detail from (
  select at, id as n, coalesce(from_place || ' -> ', '') || to_place as what, concat_ws(', ', why, 'by ' || actor, 'fence ' || fence) as detail
  from agentrl.event where trajectory = :trajectory::uuid
  union all
  select stored_at, seg, 'segment ' || seg, format('%s observation and %s action tokens, versions %s%s', n_obs, n_act, versions, ', ' || finish_reason)
  from agentrl.segment where trajectory = :trajectory::uuid
  union all
  select at, id, 'reward ' || value, concat_ws(' ', grader, grader_version)
  from agentrl.reward where trajectory = :trajectory::uuid) e
order by at, n;
