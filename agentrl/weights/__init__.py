"""Weights as files: export, verify, publish."""
