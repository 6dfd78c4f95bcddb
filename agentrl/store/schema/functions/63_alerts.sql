-- Alerts: what the numbers of a run say needs a look. The thresholds are those of docs/howto/watch-a-run.md.

-- Numbers of each step of a run's live history after step `after_`, their means over the newest steps, and what they were some time
-- before.
create or replace function agentrl.step_trends_v1(run_ bigint, after_ bigint) returns table (
  run bigint,                           -- The run.
  step bigint,                          -- The step.
  newest bigint,                        -- Newest step of the run.
  reward double precision,              -- Mean reward over 3 steps.
  best_reward double precision,         -- Highest of these means in the 20 steps before.
  reward_5 double precision,            -- Mean reward over 5 steps.
  reward_20_ago double precision,       -- The same 20 steps before.
  reward_50_ago double precision,       -- The same 50 steps before.
  spread_5 double precision,            -- Standard deviation of the reward within a step, mean over 5 steps.
  spread_20_ago double precision,       -- The same 20 steps before.
  entropy_5 double precision,           -- Entropy, mean over 5 steps.
  entropy_50_ago double precision,      -- The same 50 steps before.
  length_5 double precision,            -- Action tokens of a trajectory, mean over 5 steps.
  length_50_ago double precision,       -- The same 50 steps before.
  kl double precision,                  -- Lowest KL to the sampler (k3) of 3 steps.
  engine_gap double precision,          -- Lowest mean distance of log-probs on tokens of the trainer's own weights of 3 steps.
  ess double precision,                 -- Highest effective sample size (share, by sequence) of 3 steps.
  masked double precision,              -- Share of action tokens that the loss left out by their ratio, mean over 3 steps.
  lag double precision,                 -- Largest lag of the step.
  hit_rate double precision,            -- Share of what the trainer looked at that was in range, since its start.
  explained_variance double precision,  -- Highest explained variance of the critic in 20 steps.
  critic_gradient double precision,     -- Norm of the critic's gradient, mean over 5 steps.
  usual_gradient double precision,      -- The same over the 50 steps before.
  truncated double precision,           -- Lowest share of trajectories that a budget cut of 3 steps.
  uniform double precision,             -- Lowest share of groups without variance of 3 steps.
  cosine double precision,              -- Lowest cosine of consecutive gradients of 3 steps.
  sync_share double precision,          -- Share of the time that went into publishing weights, mean over 10 steps.
  reward_share double precision,        -- Share of the time that went into grading, mean over 10 steps.
  wait_share double precision)          -- Share of the time that the trainer waited, over 20 steps.
language sql stable as $$
select run, step, max(step) over (), reward_3, max(reward_3) over (order by step rows between 20 preceding and 1 preceding),
       reward_5, reward_20_ago, reward_50_ago, spread_5, spread_20_ago, entropy_5, entropy_50_ago, length_5, length_50_ago, kl, engine_gap, ess, masked, lag,
       hit_rate, explained_variance, critic_gradient, usual_gradient, truncated, uniform, cosine, sync_share, reward_share, wait_share
from (
  select n.run, n.step, n.lag, n.hit_rate, min(n.engine_gap) over last_3 as engine_gap, -- a step may have no such tokens
         case when count(n.reward) over last_3 = 3 then avg(n.reward) over last_3 end as reward_3,
         avg(n.reward) over last_5 as reward_5, avg(n.reward) over ago_20 as reward_20_ago, avg(n.reward) over ago_50 as reward_50_ago,
         avg(n.spread) over last_5 as spread_5, avg(n.spread) over ago_20 as spread_20_ago,
         avg(n.entropy) over last_5 as entropy_5, avg(n.entropy) over ago_50 as entropy_50_ago,
         avg(n.length) over last_5 as length_5, avg(n.length) over ago_50 as length_50_ago,
         case when count(n.kl) over last_3 = 3 then min(n.kl) over last_3 end as kl,
         case when count(n.ess) over last_3 = 3 then max(n.ess) over last_3 end as ess,
         case when count(n.masked) over last_3 = 3 then avg(n.masked) over last_3 end as masked,
         case when count(n.explained) over last_20 = 20 then max(n.explained) over last_20 end as explained_variance,
         avg(n.gradient) over last_5 as critic_gradient,
         case when count(n.gradient) over before_5 >= 20 then avg(n.gradient) over before_5 end as usual_gradient,
         case when count(n.truncated) over last_3 = 3 then min(n.truncated) over last_3 end as truncated,
         case when count(n.uniform) over last_3 = 3 then min(n.uniform) over last_3 end as uniform,
         case when count(n.cosine) over last_3 = 3 then min(n.cosine) over last_3 end as cosine,
         case when count(n.sync) over last_10 = 10 then avg(n.sync) over last_10 end as sync_share,
         case when count(n.grading) over last_10 = 10 then avg(n.grading) over last_10 end as reward_share,
         case when count(n.wait) over last_20 = 20 then sum(n.wait) over last_20 / nullif(sum(n.wall) over last_20, 0) end as wait_share
  from (
    select s.run, s.step, agentrl.as_number(m.reward_mean) as reward, agentrl.as_number(m.reward_std) as spread,
           agentrl.as_number(m.entropy) as entropy, agentrl.as_number(m.action_tokens) / nullif(s.n_trajectories, 0) as length,
           agentrl.as_number(m.kl_k3) as kl, agentrl.as_number(m.engine_gap_mean) as engine_gap, agentrl.as_number(m.ess_sequence) as ess,
           1 - agentrl.as_number(m.kept_fraction) as masked, agentrl.as_number(m.lag_max) as lag, agentrl.as_number(m.hit_rate) as hit_rate,
           agentrl.as_number(m.explained_variance) as explained, agentrl.as_number(m.critic_grad_norm) as gradient,
           agentrl.as_number(m.truncated_share) as truncated, agentrl.as_number(m.uniform_groups) as uniform,
           agentrl.as_number(m.gradient_cosine) as cosine, agentrl.as_number(m.sync_share) as sync,
           agentrl.as_number(m.reward_share) as grading, agentrl.as_number(m.wait_s) as wait, agentrl.as_number(m.wall_s) as wall
    from agentrl.step s
    -- One pass over the object: each arrow would read it again.
    cross join lateral jsonb_to_record(s.metrics) m (
      reward_mean jsonb, reward_std jsonb, entropy jsonb, action_tokens jsonb, kl_k3 jsonb, engine_gap_mean jsonb, ess_sequence jsonb,
      kept_fraction jsonb, lag_max jsonb, hit_rate jsonb, explained_variance jsonb, critic_grad_norm jsonb, truncated_share jsonb,
      uniform_groups jsonb, gradient_cosine jsonb, sync_share jsonb, reward_share jsonb, wait_s jsonb, wall_s jsonb)
    where s.run = run_ and s.step > after_ and s.abandoned_by is null) n
  window last_3 as (order by n.step rows 2 preceding),
         last_5 as (order by n.step rows 4 preceding),
         last_10 as (order by n.step rows 9 preceding),
         last_20 as (order by n.step rows 19 preceding),
         ago_20 as (order by n.step rows between 24 preceding and 20 preceding),
         ago_50 as (order by n.step rows between 54 preceding and 50 preceding),
         before_5 as (order by n.step rows between 54 preceding and 5 preceding)) w
$$;

-- The newest 20 steps of the live history of each run, and what was dropped since they began.
create or replace view agentrl.recent_drops (
  run,        -- The run.
  first_step, -- Oldest of these steps.
  last_step,  -- Newest of them.
  steps,      -- How many there are.
  newest_at,  -- When the newest was committed.
  step_s,     -- Mean seconds between two of them; NULL for a single one.
  ended,      -- Trajectories that they trained, or that were dropped meanwhile for one of these three reasons.
  too_old,    -- Dropped as stale or too_old.
  failed,     -- Dropped for a failure of ours.
  ungraded    -- Dropped because no grader gave a verdict.
) as
select r.id, s.first_step, s.last_step, s.steps, s.newest_at, s.step_s, s.trained + d.too_old + d.failed + d.ungraded, d.too_old,
       d.failed, d.ungraded
from agentrl.run r
cross join lateral (
  select min(step) filter (where place <= 20) as first_step, max(step) as last_step, least(count(*), 20) as steps,
         max(at) as newest_at, case when count(*) > 20 then min(at) else r.created_at end as since,
         (extract(epoch from max(at) - min(at)) / nullif(count(*) - 1, 0))::double precision as step_s,
         coalesce(sum(n_trajectories) filter (where place <= 20), 0) as trained
  from (select step, at, n_trajectories, row_number() over (order by step desc) as place
        from agentrl.step where run = r.id and abandoned_by is null order by step desc limit 21) n) s
cross join lateral (
  select count(*) filter (where reason in ('stale', 'too_old')) as too_old,
         count(*) filter (where reason in ('infrastructure', 'max_attempts')) as failed,
         count(*) filter (where reason = 'ungraded') as ungraded
  from agentrl.dropped where run = r.id and purpose = 'train' and at >= s.since) d
where s.last_step is not null;

-- Alerts of a run that fired at steps after `after_` (-1: at any). The view v_alerts has them of all runs and steps, which takes
-- its time where a run has very many.
create or replace function agentrl.alerts_since(run_ bigint, after_ bigint) returns table (
  alert text, severity text, active boolean, first_step bigint, last_step bigint, steps bigint, value double precision,
  bound double precision, what text, look text)
language sql stable as $$
select a.alert, a.severity, a.active, a.first_step, a.last_step, a.steps, a.value, a.bound, k.what, k.look
from (
  select t.run, x.alert, min(case when x.critical then 'critical' else 'warning' end) as severity, bool_or(t.step = t.newest) as active,
         min(t.step) as first_step, max(t.step) as last_step, count(*) as steps,
         (array_agg(x.value order by t.step desc))[1] as value, (array_agg(x.bound order by t.step desc))[1] as bound
  from agentrl.step_trends_v1(run_, after_) t
  join agentrl.run q on q.id = t.run
  cross join lateral (select case when q.config #>> '{algorithm,loss}' = 'dis' then 0.01 else 0.2 end as most_masked) c
  cross join lateral (values
    ('reward_drop', t.reward, t.best_reward / 2, t.best_reward > 0 and t.reward < t.best_reward / 2, true),
    ('reward_spread', t.spread_5, 1.5 * t.spread_20_ago,
     t.reward_20_ago > 0 and t.reward_5 > 1.1 * t.reward_20_ago and t.spread_5 > 1.5 * t.spread_20_ago, false),
    ('kl', t.kl, 0.05, t.kl > 0.05, false),
    ('engine_gap', t.engine_gap, 0.02, t.engine_gap > 0.02, t.engine_gap > 0.1),
    ('sample_size', t.ess, 0.5, t.ess < 0.5, t.ess < 0.2),
    ('masked', t.masked, c.most_masked, t.masked > c.most_masked, t.masked > 5 * c.most_masked),
    ('lag', t.lag, q.lag_bound, t.lag > q.lag_bound, true),
    ('hit_rate', t.hit_rate, 0.9, t.hit_rate < 0.9, false),
    ('critic', t.explained_variance, 0, t.explained_variance < 0, false),
    ('critic_gradient', t.critic_gradient, 2 * t.usual_gradient, t.critic_gradient > 2 * t.usual_gradient, false),
    ('entropy', t.entropy_5, t.entropy_50_ago / 2, t.entropy_5 < t.entropy_50_ago / 2 and t.reward_5 <= t.reward_50_ago, false),
    ('length', t.length_5, 0.7 * t.length_50_ago, t.length_5 < 0.7 * t.length_50_ago and t.reward_5 > t.reward_50_ago, false),
    ('truncated', t.truncated, 0.2, t.truncated > 0.2, false),
    ('uniform_groups', t.uniform, 0.9, t.uniform >= 0.9, false),
    ('gradient_cosine', t.cosine, 0.9, t.cosine > 0.9, false),
    ('sync_share', t.sync_share, 0.1, t.sync_share > 0.1, false),
    ('reward_share', t.reward_share, 0.3, t.reward_share > 0.3, false),
    ('waiting', t.wait_share, 0.5, t.wait_share > 0.5, false)) x (alert, value, bound, fires, critical)
  where x.fires
  group by t.run, x.alert
  union all
  select d.run, x.alert, case when x.critical then 'critical' else 'warning' end, true, d.first_step, d.last_step, d.steps, x.value, x.bound
  from agentrl.recent_drops d
  join agentrl.run q on q.id = d.run
  cross join lateral (select extract(epoch from now() - d.newest_at)::double precision as silent_s) n
  cross join lateral (values
    ('too_old', d.too_old::double precision / nullif(d.ended, 0), 0.05, d.too_old > 0.05 * d.ended, false),
    ('failed', d.failed::double precision / nullif(d.ended, 0), 0.05, d.failed > 0.05 * d.ended, d.failed > 0.5 * d.ended),
    ('ungraded', d.ungraded::double precision / nullif(d.ended, 0), 0, d.ungraded > 0, d.ungraded > 0.5 * d.ended),
    ('silence', n.silent_s, greatest(600, 20 * d.step_s), q.status = 'running' and n.silent_s > greatest(600, 20 * d.step_s), true)
  ) x (alert, value, bound, fires, critical)
  where d.run = run_ and d.last_step > after_ and x.fires) a
join (values
  ('reward_drop', 'The mean reward fell by more than half within 20 steps: look at the grading before the algorithm.', 'reward_by_task'),
  ('reward_spread', 'Reward rises while it spreads: the policy may live on few tasks.', 'reward_by_task'),
  ('kl', 'The policy moves far from what sampled its data: a lower learning rate or lag would help.', 'staleness_by_step'),
  ('engine_gap', 'Trainer and engine disagree on the same tokens under the same weights.', 'token_mismatch'),
  ('sample_size', 'Few sequences carry the update: most of the batch counts for little.', 'staleness_by_step'),
  ('masked', 'The loss leaves out many action tokens because their ratio is out of bounds.', 'staleness_by_step'),
  ('lag', 'A step trained on tokens over the lag bound, which should be impossible: please report it.', 'staleness'),
  ('hit_rate', 'Much of what is ready is out of range already: episodes take longer than the lag bound allows.', 'dropped_by_reason'),
  ('critic', 'The critic explains less than a constant would.', 'steps'),
  ('critic_gradient', 'The gradient of the critic is twice what is usual for this run.', 'steps'),
  ('entropy', 'Entropy halved within 50 steps and the reward did not rise.', 'stop_reasons'),
  ('length', 'Trajectories shrink while the reward rises: read some, the grader may be satisfied with too little.', 'stop_reasons'),
  ('truncated', 'Budgets cut more than a fifth of the trajectories.', 'stop_reasons'),
  ('uniform_groups', 'Nearly all groups have one reward for all members and teach nothing.', 'zero_variance'),
  ('gradient_cosine', 'Consecutive gradients point the same way: stale data repeats itself.', 'staleness'),
  ('sync_share', 'Publishing weights takes more than a tenth of the time.', 'weight_loads'),
  ('reward_share', 'Grading takes more than a third of the time of the rollout slots.', 'step_timing'),
  ('waiting', 'The trainer waits more than half of the time.', 'step_timing'),
  ('too_old', 'More than 5 % of what ended is too old to be trained: mostly long episodes.', 'selection_bias'),
  ('failed', 'More than 5 % of what ended failed for reasons of ours.', 'episode_errors'),
  ('ungraded', 'Graders gave up on episodes.', 'dropped_by_reason'),
  ('silence', 'No step for ten minutes, and for 20 times as long as one takes.', 'stuck')) k (alert, what, look) on k.alert = a.alert
$$;

-- What the numbers of a run say needs a look: a row for each alert that fired on its live history. Those about drops and about
-- silence look at the newest 20 steps only.
create or replace view agentrl.v_alerts (
  run,        -- The run.
  run_name,   -- Its name.
  alert,      -- Name of the alert; docs/howto/watch-a-run.md says what to do.
  severity,   -- Critical when going on is likely to be a waste, else warning.
  active,     -- Whether it holds at the newest step.
  first_step, -- First step at which it held.
  last_step,  -- Last step at which it held.
  steps,      -- Steps at which it held.
  value,      -- The number that it looks at, at the last of these steps.
  bound,      -- What that number was compared with.
  what,       -- What is wrong.
  look        -- Command that shows more.
) as
select r.id, r.name, a.alert, a.severity, a.active, a.first_step, a.last_step, a.steps, a.value, a.bound, a.what, a.look
from agentrl.run r cross join lateral agentrl.alerts_since(r.id, -1) a;
