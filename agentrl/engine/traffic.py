"""What went through an engine: the counts that every engine reports."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from agentrl.engine.contract import Generation
from agentrl.types import FinishReason


@dataclass
class Traffic:
    """Totals over the turns that ended; the share of cached prompt tokens is ``cached_tokens / prompt_tokens``."""

    turns: int = 0
    aborted: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    queue_s: float = 0.0
    generate_s: float = 0.0

    def count(self, prompt_tokens: int, generation: Generation) -> None:
        self.turns += 1
        self.aborted += generation.finish_reason is FinishReason.ABORT
        self.prompt_tokens += prompt_tokens
        self.cached_tokens += generation.cached_tokens
        self.sampled_tokens += len(generation.token_ids)
        self.queue_s += generation.queue_s
        self.generate_s += generation.generate_s

    def metrics(self) -> dict[str, float]:
        return {name: round(total, 3) for name, total in asdict(self).items()}
