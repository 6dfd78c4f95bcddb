-- Grading by reward workers: jobs under a lease, verdicts, re-grades.

-- Gives up to n grade jobs to a reward worker, oldest first; also reaps. What it holds under another fence than those that it names
-- comes from a lost reply, and is free again at no cost of an attempt.
create or replace function agentrl.claim_grades_v2(
  run_ bigint, worker_ text, n_ bigint, lease_s double precision, fences_ bigint[])
returns table (trajectory uuid, fence bigint, start_version bigint, attempt bigint, task_id text, payload json, split text, evidence bytea)
language plpgsql as $$
declare
  r agentrl.run := agentrl.hold_run_v1(run_);
begin
  -- The same call may still be on its way when it is made again: the second one waits for the first and frees its jobs.
  perform pg_advisory_xact_lock(hashtext('agentrl.claim_grades'), hashtext(format('%s %s', run_, worker_)));
  perform agentrl.reap_v1(r);
  update agentrl.grade_job j set worker = null, fence = null, lease = null, lease_until = null
  where j.run = run_ and j.worker = worker_ and j.fence <> all (fences_);
  return query
    with free as (
      select j.trajectory from agentrl.grade_job j where j.run = run_ and j.worker is null
      order by j.at, j.trajectory limit n_ for update skip locked
    ), taken as (
      update agentrl.grade_job j
      set worker = worker_, fence = nextval('agentrl.fence'), lease = make_interval(secs => lease_s),
          lease_until = clock_timestamp() + make_interval(secs => lease_s)
      from free where j.trajectory = free.trajectory
      returning j.*
    )
    select t.trajectory, t.fence, t.start_version, t.attempts + 1, x.task_id, k.payload, x.split, t.evidence
    from taken t
    join agentrl.trajectory x on x.run = t.run and x.start_version = t.start_version and x.id = t.trajectory
    join agentrl.task k on k.run = x.run and k.split = x.split and k.idx = x.task_idx
    order by t.at, t.trajectory;
end $$;

-- Renews grade jobs; returns those that are still the caller's.
create or replace function agentrl.renew_grades_v1(trajectories_ uuid[], fences_ bigint[]) returns setof uuid language sql as $$
  update agentrl.grade_job j set lease_until = clock_timestamp() + j.lease
  from unnest(trajectories_, fences_) m (id, fence) where j.trajectory = m.id and j.fence = m.fence
  returning j.trajectory
$$;

-- Takes a grade job away for its end, in the lock order of all moves; NULL when it is no longer held under this fence.
create or replace function agentrl.take_grade_v1(trajectory_ uuid, fence_ bigint) returns agentrl.grade_job language plpgsql as $$
declare
  j agentrl.grade_job;
begin
  select * into j from agentrl.grade_job where trajectory = trajectory_ and fence = fence_;
  if not found then
    return null;
  end if;
  perform agentrl.hold_run_v1(j.run);
  if j.grp is not null then
    perform 1 from agentrl.grp where id = j.grp for update;
  end if;
  delete from agentrl.grade_job where trajectory = trajectory_ and fence = fence_ returning * into j;
  return j;
end $$;

-- Adds a verdict; the newest counts.
create or replace function agentrl.add_reward_v1(
  run_ bigint, trajectory_ uuid, value_ float8, success_ boolean, grader_ text, grader_version_ text, detail_ text,
  duration_s_ float8) returns bigint language sql as $$
  insert into agentrl.reward (run, trajectory, grader, grader_version, value, success, detail, duration_s)
  values (run_, trajectory_, grader_, grader_version_, value_, success_, detail_::json, duration_s_) returning id
$$;

-- Writes the verdict of a job and moves the trajectory on. Repeating it under the same fence gives the first result.
create or replace function agentrl.grade_v1(
  trajectory_ uuid, fence_ bigint, value_ float8, success_ boolean, grader_ text, grader_version_ text, detail_ text,
  duration_s_ float8, out place text, out run bigint) language plpgsql as $$
declare
  j agentrl.grade_job := agentrl.take_grade_v1(trajectory_, fence_);
begin
  if j.trajectory is null then
    if not exists (select 1 from agentrl.event e where e.trajectory = trajectory_ and e.from_place = 'grade_job'
                   and e.fence = fence_ and e.to_place <> 'dropped') then
      perform agentrl.fail_v1('AR001', format('the grade job of trajectory %s is no longer held under fence %s: drop this verdict',
                                              trajectory_, fence_));
    end if;
    select s.place, s.run into place, run from agentrl.trajectory t
    join agentrl.trajectory_state s on s.run = t.run and s.trajectory = t.id where t.id = trajectory_;
    return;
  end if;
  run := j.run;
  perform agentrl.add_reward_v1(j.run, trajectory_, value_, success_, grader_, grader_version_, detail_, duration_s_);
  place := case when j.purpose = 'eval' then 'evaluated' when j.grp is null then 'ready' else 'graded' end;
  perform agentrl.note_v1(j.run, trajectory_, 'grade_job', case place when 'evaluated' then place else 'graded' end, fence_, j.worker,
                          'graded');
  if place = 'evaluated' then
    insert into agentrl.evaluated (run, trajectory, start_version, evaluation)
    select t.run, t.id, t.start_version, t.evaluation from agentrl.trajectory t
    where t.run = j.run and t.start_version = j.start_version and t.id = trajectory_;
  elsif place = 'ready' then
    perform agentrl.to_ready_v1(j.run, trajectory_, array[trajectory_], array[j.start_version], 0, clock_timestamp(), 'graded',
                                fence_, j.worker, 'no group to wait for');
  else
    insert into agentrl.graded (trajectory, run, start_version, grp) values (trajectory_, j.run, j.start_version, j.grp);
    perform agentrl.settle_group_v1(j.run, j.grp, fence_, j.worker);
    if not exists (select 1 from agentrl.graded g where g.trajectory = trajectory_) then
      place := 'ready';
    end if;
  end if;
end $$;

-- Gives a job back after a failure of the grader; after max_attempts the trajectory is dropped as ungraded. True while it will be
-- tried again. A job that is no longer held is left alone.
create or replace function agentrl.fail_grade_v1(trajectory_ uuid, fence_ bigint, error_ text) returns boolean language plpgsql as $$
declare
  j agentrl.grade_job := agentrl.take_grade_v1(trajectory_, fence_);
begin
  if j.trajectory is null then
    return true;
  end if;
  if j.attempts + 1 < (select max_attempts from agentrl.run where id = j.run) then
    insert into agentrl.grade_job (trajectory, run, start_version, purpose, grp, at, attempts, evidence)
    values (j.trajectory, j.run, j.start_version, j.purpose, j.grp, j.at, j.attempts + 1, j.evidence);
    return true;
  end if;
  perform agentrl.end_seat_v1(j.run, j.start_version, trajectory_, j.grp, 'grade_job', 'ungraded', error_, true, j.grp is not null,
                              fence_, coalesce(j.worker, 'reaper'));
  return false;
end $$;

-- Adds a verdict to a trajectory that has ended and does not wait for its first one; gives the verdict's number.
create or replace function agentrl.regrade_v1(
  trajectory_ uuid, value_ float8, success_ boolean, grader_ text, grader_version_ text, detail_ text, duration_s_ float8)
returns bigint language plpgsql as $$
declare
  t agentrl.trajectory;
begin
  select * into t from agentrl.trajectory where id = trajectory_;
  if not found then
    perform agentrl.fail_v1('AR009', format('there is no trajectory %s', trajectory_));
  elsif not t.complete or t.outcome = 'infrastructure' then
    perform agentrl.fail_v1('AR007', format('trajectory %s has no complete end to grade', trajectory_));
  elsif exists (select 1 from agentrl.grade_job where trajectory = trajectory_) then
    perform agentrl.fail_v1('AR007', format('trajectory %s waits for its first verdict: claim its grade job', trajectory_));
  end if;
  return agentrl.add_reward_v1(t.run, trajectory_, value_, success_, grader_, grader_version_, detail_, duration_s_);
end $$;
