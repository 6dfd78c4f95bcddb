"""Replay: a stored run checked against templates, weights and its own ledger."""
