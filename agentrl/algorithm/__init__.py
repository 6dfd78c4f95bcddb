"""Pure functions on tensors: advantages, losses, off-policy metrics."""
