"""What users subclass: Environment, @tool, Reward, demonstrations."""
