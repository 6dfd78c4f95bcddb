"""Credit, losses and metrics as pure functions on torch tensors: no I/O, no configuration objects, no collectives."""
