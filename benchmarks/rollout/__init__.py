"""What acting costs: engines and workers."""
