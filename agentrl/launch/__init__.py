"""Starts and restarts the processes of a run."""
