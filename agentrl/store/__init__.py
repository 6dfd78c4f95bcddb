"""The trajectory store: contract, Postgres implementation, embedded server, in-memory twin."""
