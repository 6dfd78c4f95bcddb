"""Isolated execution: contract, providers, pool."""
