"""Typed settings and presets. Imports neither torch nor a driver."""
