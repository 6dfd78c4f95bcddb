"""The settings of a run, one section a box. Numbers carry their unit in the name or in the docstring."""

from __future__ import annotations

import math
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from agentrl.config.algorithm import MOST, AlgorithmConfig, Section
from agentrl.config.engine import EngineSettings
from agentrl.config.layout import LayoutSettings, ModelSizes
from agentrl.config.nearest import nearest
from agentrl.config.schedule import Pace, Schedule, Wanted, pace_of
from agentrl.staleness import lag_bound
from agentrl.types import LEASE_LIMIT, Origin, ToolFormat


class ModelSettings(Section):
    """Which policy is trained."""

    path: str | None = None
    """A Hugging Face model directory (config, tokenizer with chat template, safetensors). None: a small model is built."""
    critic_path: str | None = None
    """A directory with the critic's first weights, with or without a value head. None: the policy's weights, a head of 0."""
    hidden: int = Field(96, ge=8, le=MOST)
    """Width of the built model."""
    layers: int = Field(2, ge=1, le=MOST)
    """Layers of the built model."""
    heads: int = Field(4, ge=1, le=MOST)
    """Attention heads of the built model."""
    kv_heads: int = Field(2, ge=1, le=MOST)
    """Key-value heads of the built model."""
    ffn: int = Field(192, ge=8, le=MOST)
    """Columns of each MLP of the built model."""
    max_context: int = Field(192, ge=32)
    """Context window of the built model, in tokens."""
    tool_format: str = "auto"
    """How the model writes tool calls; auto: as its chat template does. A name of `agentrl.types.ToolFormat`."""
    history: Literal["append", "template"] = "append"
    """append: earlier turns stay in the prompt as they were sampled. template: where the chat template rewrites them (drops
    reasoning, for example) a new context opens with the rewritten prompt."""

    @field_validator("tool_format")
    @classmethod
    def _known_format(cls, value: str) -> str:
        names = ["auto", *ToolFormat]
        if value not in names:
            raise ValueError(f"unknown tool format.{nearest(value, names)} Formats: {', '.join(names)}")
        return value

    @property
    def chosen_tool_format(self) -> ToolFormat | None:
        """None: as the chat template writes calls."""
        return None if self.tool_format == "auto" else ToolFormat(self.tool_format)

    @property
    def sizes(self) -> ModelSizes:
        """What a layout must divide in the model that is built."""
        return ModelSizes(self.layers, self.heads, self.kv_heads, self.ffn)


class WarmStart(Section):
    """Supervised fine-tuning on the environment's demonstrations before RL; only for a model that is built here."""

    demonstrations: int = Field(1500, ge=1, le=MOST)
    """Episodes of the demonstrator that are played."""
    steps: int = Field(500, ge=1, le=MOST)
    """Updates on them."""
    batch: int = Field(32, ge=1, le=MOST)
    """Demonstrations of an update."""
    learning_rate: float = Field(3e-3, gt=0)
    """The highest; it rises to it first and falls to a tenth of it."""


PROVIDERS = ("auto", "docker", "podman", "bubblewrap")


class SandboxSettings(Section):
    """Where tool code runs."""

    provider: str = "auto"
    """docker, podman, bubblewrap, one's own as module:Class or path/to/file.py:Class; auto: the first of them that works."""
    pool_size: int = Field(24, ge=1, le=MOST)
    """Sandboxes kept warm by each rollout worker."""
    unsafe_local_execution: bool = False
    """Run tool code as processes of this machine, without any isolation."""

    @field_validator("provider")
    @classmethod
    def _known(cls, value: str) -> str:
        if ":" in value or value in PROVIDERS:
            return value
        raise ValueError(f"unknown provider.{nearest(value, PROVIDERS)} Providers: {', '.join(PROVIDERS)}, or module:Class")


class RolloutSettings(Section):
    """The workers that act."""

    workers: int = Field(1, ge=0, le=MOST)
    """0: only outside agents act, through `agentrl gateway`."""
    concurrency: int = Field(128, ge=1, le=MOST)
    """Episodes that one worker runs at once."""
    lease_s: float = Field(60.0, gt=0, le=86_400)
    """Time for which a worker holds an episode without a sign of life."""
    max_attempts: int = Field(3, ge=1, le=MOST)
    """Charged attempts of an episode before its seat is given up."""
    oversampling: float | None = Field(None, ge=0)
    """Trajectories under way beside one batch, as a share of it: the first trainer.batch that finish make a step, the others go
    on for the next one. None: as many as the lag bound admits, which is that many batches."""
    group_redundancy: int = Field(0, ge=0, le=MOST)
    """Extra episodes of each group, which is complete with the first algorithm.group_size graded ones; others are dropped."""
    resume_partial: bool = False
    """Continue an episode that lost its worker from its last stored turn: its calls are done again in a clean sandbox."""


class RewardSettings(Section):
    """The workers that grade."""

    workers: int = Field(0, ge=0, le=MOST)
    """0: whoever ran an episode grades it when it ends. More: so many processes grade, and rollout workers go on meanwhile."""
    concurrency: int = Field(64, ge=1, le=MOST)
    """Episodes that one reward worker grades at once."""
    lease_s: float = Field(60.0, gt=0, le=86_400)
    """Time for which a reward worker holds an episode without a sign of life."""
    retry_s: float = Field(2.0, ge=0, le=3600)
    """Pause after an episode's first failed grading; it doubles with each further one."""

    @model_validator(mode="after")
    def _all_read(self) -> Self:
        fields = type(self).model_fields
        unread = [name for name in fields if name != "workers" and getattr(self, name) != fields[name].default]
        if unread and not self.workers:
            raise ValueError(f"reward.{unread[0]} is not read without reward workers: set reward.workers too, or neither")
        return self


class StalenessSettings(Section):
    """How old a trained token may be."""

    eta: float = Field(0.25, ge=0, le=1)
    """Sync strength: 0 strictly synchronous, 1 unbounded."""
    lag: int | None = Field(None, ge=0, le=MOST)
    """Lag bound in policy updates; None derives it from eta."""
    mode: Literal["trajectory", "segment_mask"] = "trajectory"
    """trajectory: what has one token over the bound is dropped. segment_mask: such tokens are left out of the loss, and a
    trajectory is dropped when all of its tokens are over the bound."""
    max_age_s: float | None = Field(None, gt=0)
    """Age at which a trajectory that was not claimed is dropped as too_old; None: never."""
    group_deadline_s: float | None = Field(None, gt=0)
    """Age at which a group that is still open is dropped as group_incomplete, stragglers and all; None: never."""

    refresh_every: int = Field(1, ge=1, le=MOST)
    """Workers load every k-th version: loading interrupts generation, not loading makes tokens up to k - 1 updates older."""

    @model_validator(mode="after")
    def _fresh_enough(self) -> Self:
        if self.mode == "segment_mask" and self.bound is None:
            raise ValueError(
                f"staleness.mode=segment_mask leaves out tokens over the lag bound, but staleness.eta={self.eta:g} sets none: "
                "set staleness.lag, or a smaller eta"
            )
        if self.bound is not None and self.bound < self.refresh_every - 1:
            raise ValueError(
                f"staleness.refresh_every ({self.refresh_every}) lets workers act on weights that are {self.refresh_every - 1} "
                f"updates old, but the lag bound is {self.bound}: set staleness.refresh_every to {self.bound + 1} or less, "
                f"or staleness.lag to {self.refresh_every - 1} or more"
            )
        return self

    @property
    def bound(self) -> int | None:
        """The lag bound L in policy updates; None is unbounded."""
        return self.lag if self.lag is not None else lag_bound(self.eta)


class TrainerSettings(Section):
    """The box that updates the policy."""

    steps: int = Field(1000, ge=1, le=MOST)
    """Steps of the run, those of the critic's warm-up included."""
    batch: int = Field(128, ge=1, le=MOST)
    """Most trajectories of a step; a multiple of algorithm.group_size."""
    batch_min: int | None = Field(None, ge=1, le=MOST)
    """Fewest: an update starts as soon as these are ready, with what is ready then. None: as the schedule says."""
    schedule: Schedule | None = None
    """When updates start and what is generated meanwhile: synchronous, drop_last, pipelined, group_async or async. None:
    synchronous where the lag bound is 0, else group_async with groups and async without."""
    drop_share: float | None = Field(None, gt=0, lt=1)
    """drop_last: largest share of a round that an update does not wait for. None: 0.05."""
    pipeline_part: int | None = Field(None, ge=1, le=MOST)
    """pipelined: fewest trajectories that are trained on as soon as they are ready. None: an eighth of a batch."""
    learning_rate: float = Field(1e-6, gt=0)
    """Of the policy, at the first step."""
    final_learning_rate: float = Field(1.0, gt=0, le=1)
    """Fraction of learning_rate at the last step; linear in between."""
    beta2: float = Field(0.99, gt=0, lt=1)
    """Second decay rate of Adam."""
    weight_decay: float = Field(0.0, ge=0)
    """Of AdamW."""
    clip_grad: float = Field(1.0, gt=0)
    """Largest norm of the policy's gradient."""
    micro_batch_tokens: int = Field(4096, ge=1, le=MOST)
    """Tokens of one forward pass on one rank; a longer trajectory is one of its own."""
    layout: LayoutSettings = LayoutSettings()
    """How the trainer is spread over processes."""
    long_tokens: int | None = Field(None, ge=1, le=MOST)
    """Tokens from which a trajectory counts as long; with long_share, or None: no places are reserved."""
    long_share: float | None = Field(None, gt=0, lt=1)
    """Share of each batch reserved for long trajectories, which finish later and would be seen too rarely."""
    long_wait_s: float = Field(30.0, ge=0, le=86_400)
    """Longest wait for long trajectories before short ones take their places."""
    checkpoint_every: int | None = Field(None, ge=1, le=MOST)
    """Steps between checkpoints; None: chosen after the first one, so that saving takes less than 5 % of the run."""
    keep_checkpoints: int = Field(2, ge=1, le=MOST)
    """Newest checkpoints that are kept; the others are removed. A resume takes the newest that is whole."""
    max_shard_gb: float = Field(5.0, gt=0)
    """Largest safetensors file of published weights, in 10^9 bytes; a larger model is split, with an index."""
    weights_gb: float = Field(50.0, ge=0, le=1e6)
    """Room for weight files of past versions, in GB (1e9 bytes): beyond it the oldest go, but none that may still be loaded."""
    lease_s: float = Field(60.0, gt=0, le=86_400)
    """Time for which the trainer holds a batch, and its run, without a sign of life."""
    origins: tuple[Origin, ...] = Field((Origin.SIMULATED, Origin.RECORDED), min_length=1)
    """What is trained on: simulated, recorded, live. Live traffic only where it is named here."""


class StoreSettings(Section):
    """How processes wait for the store."""

    poll_seconds: float = Field(2.0, gt=0, le=60)
    """Whoever waits asks again after this long, should a wake-up have been lost."""
    outage_s: float = Field(120.0, ge=0, le=86_400)
    """How long the processes of a run wait for a database that does not answer before they end."""


class EvaluationSettings(Section):
    """Held-out episodes, each evaluation pinned to one policy version."""

    split: str = Field("heldout", min_length=1, max_length=100)
    """Not "train": what was trained on is not held out."""
    episodes: int = Field(512, ge=1, le=MOST)
    """Episodes of the first and the last evaluation."""
    every: int = Field(50, ge=0, le=MOST)
    """Steps between evaluations; 0: only before the first and after the last step."""
    episodes_during: int = Field(128, ge=1, le=MOST)
    """Episodes of each evaluation in between."""


class RunConfig(Section):
    """Everything a run needs to be repeated."""

    environment: str
    """A name of `agentrl env list`, module:Class, path/to/file.py:Class or ./folder."""
    environment_options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the environment's constructor by name, which checks them; `agentrl env show NAME` lists them."""
    preset: str = "sao_turn"
    """The algorithm; `agentrl config presets` lists them."""
    seed: int = Field(0, ge=0, le=2**62)
    """Decides tasks, demonstrations, initial weights and sampling."""
    model: ModelSettings = ModelSettings()
    warm_start: WarmStart = WarmStart()
    store: StoreSettings = StoreSettings()
    sandbox: SandboxSettings = SandboxSettings()
    engine: EngineSettings = EngineSettings()
    rollout: RolloutSettings = RolloutSettings()
    reward: RewardSettings = RewardSettings()
    staleness: StalenessSettings = StalenessSettings()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    trainer: TrainerSettings = TrainerSettings()
    evaluation: EvaluationSettings = EvaluationSettings()

    @property
    def pace(self) -> Pace:
        """What the schedule means in numbers."""
        trainer = self.trainer
        wanted = Wanted(
            trainer.schedule, trainer.batch, trainer.batch_min, trainer.drop_share, trainer.pipeline_part,
            self.staleness.bound, self.staleness.refresh_every, trainer.long_share,
        )  # fmt: skip
        return pace_of(wanted, self.algorithm)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        group = self.algorithm.group_size
        self._check_batch(group)
        self.pace  # noqa: B018  refuses what contradicts the schedule
        if (self.trainer.long_tokens is None) != (self.trainer.long_share is None):
            raise ValueError("trainer.long_tokens and trainer.long_share belong together: set both or neither")
        if self.trainer.long_share is None and self.trainer.long_wait_s != TrainerSettings().long_wait_s:
            raise ValueError("trainer.long_wait_s is not read without trainer.long_share: set both or neither")
        if self.staleness.group_deadline_s is not None and group == 1:
            raise ValueError("staleness.group_deadline_s needs groups: algorithm.group_size is 1")
        self._check_surplus(group)
        ratio = "loss=gspo" if self.algorithm.loss == "gspo" else f"sequence_gate={self.algorithm.sequence_gate}"
        if self.staleness.mode == "segment_mask" and ratio != "sequence_gate=none":
            raise ValueError(
                f"algorithm.{ratio} weighs a trajectory by all of its tokens, and staleness.mode=segment_mask leaves some out: "
                "use staleness.mode=trajectory, or another loss without a gate"
            )
        if self.evaluation.split == "train":
            raise ValueError("evaluation.split can't be 'train': its tasks are trained on")
        if self.model.hidden % self.model.heads or self.model.heads % self.model.kv_heads:
            raise ValueError(
                f"model.hidden ({self.model.hidden}) must be a multiple of model.heads ({self.model.heads}), "
                f"and model.heads a multiple of model.kv_heads ({self.model.kv_heads})"
            )
        misfits = self.trainer.layout.misfits(self.model.sizes) if self.model.path is None else []
        if misfits:
            raise ValueError("; ".join(misfits))
        return self

    def _check_batch(self, group: int) -> None:
        least, most = self.trainer.batch_min, self.trainer.batch
        for name, size in (("batch", most), ("batch_min", least)):
            if size is not None and size % group:
                raise ValueError(
                    f"trainer.{name} ({size}) must be a multiple of algorithm.group_size ({group}): "
                    f"use {' or '.join(str(n * group) for n in (size // group, size // group + 1) if n)}"
                )
        if most > LEASE_LIMIT:
            raise ValueError(
                f"trainer.batch ({most}) is over the {LEASE_LIMIT} trajectories that can be leased at once: "
                f"use {LEASE_LIMIT // group * group} or fewer"
            )
        if least is not None and least > most:
            raise ValueError(f"trainer.batch_min ({least}) is above trainer.batch ({most}), the most that a step takes")

    def _check_surplus(self, group: int) -> None:
        bound, share = self.staleness.bound, self.rollout.oversampling
        if self.rollout.group_redundancy and group == 1:
            raise ValueError("rollout.group_redundancy needs groups: algorithm.group_size is 1")
        if share is not None and bound is not None and share > bound:
            raise ValueError(
                f"rollout.oversampling ({share:g}) keeps trajectories for up to {math.ceil(share)} later batches, but the lag "
                f"bound is {bound}: set rollout.oversampling to {bound} or less, or staleness.lag to {math.ceil(share)} or more"
            )
        if share is not None and self.pace.ahead == 0:
            raise ValueError(
                f"rollout.oversampling ({share:g}) keeps episodes under way beside a batch, but schedule {self.pace.schedule} "
                "opens nothing before its update: leave it out, or use trainer.schedule=async or group_async"
            )

    @property
    def oversample(self) -> int | None:
        """`RolloutSettings.oversampling` in trajectories, whole groups, never more than the lag bound admits."""
        share, bound, group = self.rollout.oversampling, self.staleness.bound, self.algorithm.group_size
        if share is None:
            return None
        wanted = math.ceil(share * self.trainer.batch / group) * group
        return wanted if bound is None else min(wanted, bound * self.trainer.batch)
