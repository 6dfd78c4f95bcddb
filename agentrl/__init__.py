"""Reinforcement learning for LLM agents, centred on a trajectory store.

Importing this package loads neither torch nor a database driver; import the room you need, for example
``from agentrl.environment import Environment, tool``.
"""

__version__ = "0.1.0"
