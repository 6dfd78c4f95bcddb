"""Measurements of the trainer: ``python -m benchmarks.trainer``."""
