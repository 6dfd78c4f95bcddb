"""What users subclass: Environment, @tool, Reward, demonstrations."""

from agentrl.environment.base import Environment, Policy, TokenizerHints
from agentrl.environment.episode import Done, Episode, Turn
from agentrl.environment.tools import ToolError, tool
from agentrl.tokens.messages import Message
from agentrl.types import Reward, Task

__all__ = [
    "Done",
    "Environment",
    "Episode",
    "Message",
    "Policy",
    "Reward",
    "Task",
    "TokenizerHints",
    "ToolError",
    "Turn",
    "tool",
]
