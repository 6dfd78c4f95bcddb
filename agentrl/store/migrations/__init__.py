"""Alembic migrations of the schema, in two chains: `pre` only adds, so that the release before goes on working; `post` removes.

A new database is made whole from `agentrl.store.schema` and marked with the newest revisions. A test holds that a migrated
database and a new one are the same.
"""
