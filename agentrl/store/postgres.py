"""The trajectory store in Postgres.

Invariants, kept by the SQL functions in `schema/` and each tested under its name: version_truth, liveness, conservation,
exactly_once_effect, any_bytes. `agentrl.store.contract` says what each method promises.
"""

from __future__ import annotations

from agentrl.store.postgres_episodes import PostgresEpisodes
from agentrl.store.postgres_grading import PostgresGrading
from agentrl.store.postgres_trainer import PostgresTrainer


class PostgresStore(PostgresTrainer, PostgresEpisodes, PostgresGrading):
    """A `TrajectoryStore` over a pool of ``pool_size`` connections; it creates the schema where it is absent.

    Raises `NotReadyError` when the server can't be reached, refuses the user or holds another version of the schema.
    """
