-- name: alerts
-- What the numbers of a run say needs a look: what holds at the newest step first; empty when all is well.
select run_name as run, alert, severity, active, first_step, last_step, steps, value, bound, what,
       format('agentrl db query %s --run %s', look, run_name) as look
from agentrl.v_alerts
where :run::text is null or run = (select agentrl.find_run_v1(:run))
order by run_name, active desc, severity, last_step desc, alert;
