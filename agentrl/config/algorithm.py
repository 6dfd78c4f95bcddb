"""Settings of credit, loss and critic. Presets give the values; see `agentrl.config.presets` for their sources.

An option that the chosen advantage or loss doesn't read is refused: `agentrl.config.options` says who reads what.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator

from agentrl.config.options import unread_options


class Section(BaseModel):
    """Base of all sections: unknown keys are refused and values are fixed once loaded."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


MOST = 2**31 - 1
"""Largest count; databases and kernels agree on no larger one."""
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Advantage = Literal["turn_gae", "token_gae", "group", "leave_one_out", "turn_group", "anchor_group", "reinforce_pp"]
LossName = Literal["dis", "reinforce", "ppo_clip", "decoupled_ppo", "cispo", "gspo"]

WITH_CRITIC = ("turn_gae", "token_gae")
GROUPED = ("group", "leave_one_out", "turn_group", "anchor_group")
_NORMALISED = {"turn": ("turn_gae", "turn_group", "anchor_group"), "trajectory": ("group", "leave_one_out")}
"""What has one advantage per turn, or per trajectory, to whiten."""
SENSIBLE_GROUPS = (8, 16)
"""Smaller groups are noisy, larger ones dear."""


class CriticConfig(Section):
    """The value model: same backbone, scalar head."""

    learning_rate: float = Field(5e-6, gt=0)
    """Of the critic, constant."""
    updates_per_batch: int = Field(2, ge=1)
    """Value updates per batch (K)."""
    warmup_batches: int = Field(10, ge=0)
    """First batches that train the critic alone; the policy version does not change."""
    freeze_attention: bool = True
    """Attention stays as it was; MLPs, norms, embeddings and the head learn."""
    gae_lambda: float = Field(1.0, ge=0, le=1)
    """Lambda of the critic's targets; 1: the plain return."""
    value_eval: Literal["before", "after"] = "after"
    """Values for the advantages are read before or after the batch's value updates."""
    value_clip: float | None = Field(None, gt=0)
    """Values may move this far from those before the batch's updates; None: no bound."""
    clip_grad: float = Field(1.0, gt=0)
    """Largest norm of the critic's gradient."""


class KLConfig(Section):
    """Distance to the policy that the run started from. A coefficient of 0 needs no reference model and switches it off."""

    coefficient: float = Field(0.0, ge=0)
    """The first coefficient; a controller changes it."""
    place: Literal["loss", "reward"] = "loss"
    """``loss``: added to the policy loss; ``reward``: taken from each action token's reward."""
    estimator: Literal["k1", "k2", "k3"] = "k3"
    """Of the distance, from the log-probs of sampled tokens."""
    controller: Literal["fixed", "ziegler", "band"] = "fixed"
    """``ziegler`` moves towards target; ``band`` keeps the KL between low and high."""
    target: float = Field(0.02, gt=0)
    """KL that ziegler moves towards."""
    horizon: int = Field(10_000, ge=1)
    """Trajectories over which ziegler corrects an error."""
    low: float = Field(0.001, gt=0)
    """Below it band divides the coefficient by 1.5."""
    high: float = Field(0.05, gt=0)
    """Above it band multiplies the coefficient by 1.5."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.coefficient and self.place == "loss" and self.estimator == "k1":
            raise ValueError("kl.estimator k1 has no gradient in expectation as a loss: use k2 or k3, or kl.place=reward")
        if self.low >= self.high:
            raise ValueError(f"kl.low ({self.low:g}) must be below kl.high ({self.high:g})")
        return self


class AlgorithmConfig(Section):
    """How a batch of trajectories becomes a policy update."""

    advantage: Advantage = "turn_gae"
    """Who earned the reward."""
    gamma: float = Field(1.0, ge=0, le=1)
    """Discount from one unit of credit to the next: a turn, or an action token (token_gae, reinforce_pp)."""
    gae_lambda: Fraction | Literal["length_adaptive"] = "length_adaptive"
    """``length_adaptive``: 1 - 1/(lambda_alpha n), n turns (turn_gae) or action tokens (token_gae)."""
    lambda_alpha: float = Field(1.5, gt=0)
    """Of length_adaptive."""
    turn_value: Literal["first", "mean", "last"] = "first"
    """V of a turn: of the state it acts from, or the mean or last of its tokens' values."""
    mapping: Literal["broadcast", "hierarchical"] = "broadcast"
    """From turn to tokens: the same advantage on each, or a token-level estimate inside each turn."""
    token_lambda: float = Field(1.0, ge=0, le=1)
    """Lambda inside a turn."""
    td_window: int | None = Field(None, ge=1)
    """Turns or action tokens after which rewards are replaced by the critic's value (TD-clip); None: all."""
    td_clamp: float | None = Field(None, gt=0)
    """Bound of each TD error; None: none."""
    normalise: Literal["none", "token", "turn", "trajectory"] = "none"
    """What counts once when advantages are whitened over the batch."""
    group_size: int = Field(1, ge=1)
    """Episodes of one task that are trained together; 1: no groups."""
    group_std: bool = False
    """Divide group advantages by the group's standard deviation."""
    group_ddof: Literal[0, 1] = 1
    """Degrees of freedom of that deviation."""
    anchor_weight: float = Field(1.0, ge=0)
    """Weight of what turns earned from equal states, beside what whole episodes earned."""
    drop_uniform_groups: bool = False
    """Drop groups whose members all got the same reward (zero_variance) before anything is counted."""
    overlong_limit: int | None = Field(None, ge=1)
    """Action tokens from which a trajectory loses a whole point of reward; None: length costs nothing."""
    overlong_cache: int = Field(1, ge=1)
    """Tokens below the limit over which that penalty grows."""
    loss: LossName = "dis"
    """What is minimised."""
    ratio_low: float = Field(0.2, ge=0, lt=1)
    """Lower bound of the ratio (dis: masked at or below; others: clipped)."""
    ratio_high: float = Field(4.0, gt=1)
    """Upper bound of the ratio (dis: masked at or above; others: clipped)."""
    ratio_to: Literal["rollout", "proximal"] = "rollout"
    """Denominator of the ratio: the log-prob recorded at sampling, or that of the weights when the batch arrived."""
    dual_clip: float | None = Field(None, gt=1)
    """Ratio from which tokens of negative advantage stop training."""
    proximal: Literal["recomputed", "interpolated"] = "recomputed"
    """The proximal log-prob: of the weights when the batch arrived, or estimated from the tokens' lag (A-3PO)."""
    correction: Literal["none", "cap", "mask"] = "none"
    """Bound of the weight proximal/rollout: none, cut off at correction_high, or 0 outside its bounds."""
    correction_low: float = Field(0.5, ge=0, lt=1)
    """Lower bound of the weight with correction=mask."""
    correction_high: float = Field(2.0, gt=1)
    """Upper bound of the weight."""
    weight_cap: float | None = Field(2.0, gt=1)
    """Largest importance weight; None: no bound."""
    sequence_gate: Literal["none", "product", "geometric", "bernoulli_kl"] = "none"
    """Leave whole trajectories out of the loss: by the product or the geometric mean of their tokens' ratios to the sampler
    (outside gate_low..gate_high), or by their mean Bernoulli KL (above gate_high)."""
    gate_low: float = Field(0.0, ge=0)
    """Lower bound of the gate."""
    gate_high: float = Field(2.0, gt=0)
    """Upper bound of the gate."""
    entropy_bonus: float = Field(0.0, ge=0)
    """Weight of the policy's entropy in the loss."""
    aggregation: Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm", "turn_mean"] = (
        "token_mean"
    )
    """What the loss is a mean of: tokens, trajectories or turns."""
    length_norm: int | None = Field(None, ge=1)
    """The constant of seq_mean_token_sum_norm, in tokens."""
    passes: int = Field(1, ge=1)
    """Policy updates on one batch. The batch stays one step, one ledger entry and one version."""
    gradient_cosine: bool = False
    """Measure the cosine of each policy gradient with the one before; keeps a copy of the gradient."""
    truncation: Literal["bootstrap", "zero", "mask"] = "bootstrap"
    """Credit at the end of a truncated, ungraded trajectory."""
    kl: KLConfig = KLConfig()
    critic: CriticConfig | None = CriticConfig()

    @property
    def needs_reference(self) -> bool:
        """Whether the policy that the run started from is kept and read."""
        return self.kl.coefficient > 0

    @property
    def ratio_can_move(self) -> bool:
        """Whether the ratio that the bounds are for can differ from 1."""
        to_proximal = (
            self.proximal == "recomputed"
            if self.loss == "decoupled_ppo"
            else self.loss in ("ppo_clip", "cispo", "gspo") and self.ratio_to == "proximal"
        )
        return self.passes > 1 or not to_proximal

    def updates_policy(self, step: int) -> bool:
        """Whether the batch after ``step`` finished ones trains the policy, or is one of the critic's first."""
        return self.critic is None or step >= self.critic.warmup_batches

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._check_critic()
        if self.advantage in GROUPED and self.group_size < 2:
            raise ValueError(f"advantage '{self.advantage}' needs algorithm.group_size of 2 or more, got {self.group_size}")
        if self.drop_uniform_groups and self.group_size < 2:
            raise ValueError("algorithm.drop_uniform_groups needs groups: algorithm.group_size is 1")
        if self.loss == "dis" and not self.ratio_low:
            raise ValueError("loss 'dis' needs algorithm.ratio_low above 0")
        if self.aggregation == "seq_mean_token_sum_norm" and self.length_norm is None:
            raise ValueError("aggregation 'seq_mean_token_sum_norm' needs the constant algorithm.length_norm, in tokens")
        for normalise, advantages in _NORMALISED.items():
            if self.normalise == normalise and self.advantage not in advantages:
                raise ValueError(
                    f"normalise '{normalise}' needs one of the advantages {', '.join(advantages)}, not '{self.advantage}'"
                )
        if self.gate_low >= self.gate_high:
            raise ValueError(f"algorithm.gate_low ({self.gate_low:g}) must be below gate_high ({self.gate_high:g})")
        if self.sequence_gate in ("product", "geometric") and not self.gate_low < 1 < self.gate_high:
            raise ValueError(
                f"algorithm.gate_low ({self.gate_low:g}) and gate_high ({self.gate_high:g}) must have 1 between them: "
                "on the sampler's own weights every ratio is 1"
            )
        if self.overlong_limit is not None and self.overlong_cache > self.overlong_limit:
            raise ValueError(
                f"algorithm.overlong_cache ({self.overlong_cache}) must not be above algorithm.overlong_limit "
                f"({self.overlong_limit}): the shortest trajectory would be fined"
            )
        own, default = self.options(), option_defaults()
        complaints = [why for option, why in unread_options(own).items() if own[option] != default[option]]
        if complaints:
            raise ValueError("; ".join(complaints))
        return self

    def options(self) -> dict[str, Any]:
        """All options but the critic's, by dotted name."""
        own = {name: getattr(self, name) for name in AlgorithmConfig.model_fields if name not in ("kl", "critic")}
        return own | {f"kl.{name}": getattr(self.kl, name) for name in KLConfig.model_fields}

    def _check_critic(self) -> None:
        if self.advantage not in WITH_CRITIC and self.critic is not None:
            raise ValueError(
                f"advantage '{self.advantage}' has no critic: remove algorithm.critic or choose turn_gae or token_gae"
            )
        if self.advantage in WITH_CRITIC and self.critic is None:
            raise ValueError(f"advantage '{self.advantage}' needs a critic")
        if self.critic is None and self.truncation == "bootstrap":
            raise ValueError(f"truncation 'bootstrap' needs a critic: use 'zero' or 'mask' with advantage '{self.advantage}'")


def option_choices() -> dict[str, tuple[Any, ...]]:
    """The values of options that have a fixed list of them, by dotted name."""
    fields = {**AlgorithmConfig.model_fields, **{f"kl.{name}": info for name, info in KLConfig.model_fields.items()}}
    return {name: get_args(info.annotation) for name, info in fields.items() if get_origin(info.annotation) is Literal}


def option_defaults() -> dict[str, Any]:
    """The defaults of `AlgorithmConfig.options`."""
    own = {name: info.default for name, info in AlgorithmConfig.model_fields.items() if name not in ("kl", "critic")}
    return own | {f"kl.{name}": info.default for name, info in KLConfig.model_fields.items()}
