-- name: selection_bias
-- What was trained, dropped and is pending by length, turns, wall time, reward and task: what is trained too rarely is marked.
-- limit: 200
with episode as (
  select r.name as run, t.task_id, s.actions, s.turns, w.value, c.trajectory is not null as trained, d.trajectory is not null as dropped,
         extract(epoch from coalesce(t.ended_at, d.at, now()) - t.started_at)::float8 as wall_s
  from agentrl.run r
  join agentrl.trajectory t on t.run = r.id and t.purpose = 'train'
  left join agentrl.consumed c on c.run = r.id and c.trajectory = t.id and c.abandoned_by is null
  left join agentrl.dropped d on d.run = r.id and d.trajectory = t.id
  cross join lateral (
    select coalesce(sum(n_act), 0)::float8 as actions, (count(*) filter (where n_act > 0))::float8 as turns from agentrl.segment
    where run = t.run and start_version = t.start_version and trajectory = t.id) s
  left join lateral (select value from agentrl.reward where trajectory = t.id order by id desc limit 1) w on true
  where :run::text is null or r.id = (select agentrl.find_run_v1(:run))
), measured as (
  select e.run, e.trained, e.dropped, x.dimension, x.place, x.value, x.task_id from episode e
  cross join lateral (values (1, 'length', e.actions, null), (2, 'turns', e.turns, null), (3, 'wall_s', e.wall_s, null),
                             (4, 'reward', e.value, null), (5, 'task', null, e.task_id)) x (place, dimension, value, task_id)
), quartiles as (
  select run, dimension, percentile_disc(array[0.25, 0.5, 0.75]) within group (order by value) as cuts
  from measured group by run, dimension
), counted as (
  select m.run, m.place, m.dimension, m.task_id, b.bucket, min(m.value) as low, max(m.value) as high,
         count(*) filter (where m.trained) as trained, count(*) filter (where m.dropped) as dropped,
         count(*) filter (where not m.trained and not m.dropped) as pending, count(*) filter (where m.trained or m.dropped) as settled
  from measured m
  join quartiles q using (run, dimension)
  cross join lateral (select case when m.value is not null then (select count(*) from unnest(q.cuts) c where c < m.value) end as bucket) b
  group by m.run, m.place, m.dimension, m.task_id, b.bucket
), compared as (
  select c.*, trained::float8 / nullif(settled, 0) as inclusion,
         trained * sum(settled) over whole / nullif(settled * sum(trained) over whole, 0)::float8 as relative,
         trained / nullif(sum(trained) over whole, 0)::float8 - settled / nullif(sum(settled) over whole, 0)::float8 as shift
  from counted c window whole as (partition by run, dimension)
)
select run, dimension,
       coalesce(task_id, case when bucket is null then 'none'
                else concat_ws(' to ', trim_scale(round(low::numeric, 2)), trim_scale(nullif(round(high::numeric, 2), round(low::numeric, 2)))) end) as bucket,
       trained, dropped, pending, inclusion, relative, sum(abs(shift)) over (partition by run, dimension) / 2 as tvd,
       settled >= 30 and relative not between 0.8 and 1.25 as biased
from compared
order by run, place, compared.bucket, case when task_id is not null then relative end, task_id
limit :limit::bigint;
