"""What users subclass: Environment, @tool, Reward, demonstrations."""

from agentrl.environment.base import Environment, Policy, TokenizerHints
from agentrl.environment.calls import tool_call
from agentrl.environment.episode import Done, Episode, Step, Turn
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
    "Step",
    "Task",
    "TokenizerHints",
    "ToolError",
    "Turn",
    "tool",
    "tool_call",
]
