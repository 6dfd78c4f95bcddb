"""Measurements of the trainer: layouts, train steps, packing, memory."""
