"""Does it learn, and what does each choice change: real runs of ``agentrl train`` on the default task, read from the store."""
