-- name: conservation
-- Where all trajectories are: created must equal the sum of the seven training places.
select run_name as run, created, live, grade_job, graded, ready, lease, consumed, dropped, holds, evaluated, eval_open
from agentrl.v_conservation
where :run::text is null or run = (select agentrl.find_run_v1(:run))
order by v_conservation.run;
