"""Structured logs and run metrics."""
