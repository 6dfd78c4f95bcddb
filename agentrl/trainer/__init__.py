"""Claim, batch, credit, update, commit; Megatron models."""
