"""Claim, batch, credit, update, commit; the models it trains live in `agentrl.trainer.megatron`."""
