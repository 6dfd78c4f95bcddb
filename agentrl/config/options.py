"""Which choice reads which option of the algorithm, so that an option nobody reads is refused instead of ignored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reader:
    """``options`` count only while ``setting`` is read itself and has one of ``values``."""

    setting: str
    values: tuple[str, ...]
    options: tuple[str, ...]


READERS = (
    Reader("advantage", ("turn_gae", "token_gae"), ("gae_lambda", "td_window", "td_clamp")),
    Reader("advantage", ("turn_gae", "token_gae", "turn_group", "anchor_group", "reinforce_pp"), ("gamma",)),
    Reader("advantage", ("turn_gae",), ("turn_value", "mapping")),
    Reader("advantage", ("group", "turn_group", "anchor_group"), ("group_std", "group_ddof")),
    Reader("advantage", ("anchor_group",), ("anchor_weight",)),
    Reader("advantage", ("turn_gae", "token_gae", "group", "leave_one_out", "turn_group", "anchor_group"), ("normalise",)),
    Reader("gae_lambda", ("length_adaptive",), ("lambda_alpha",)),
    Reader("mapping", ("hierarchical",), ("token_lambda",)),
    Reader("loss", ("dis", "ppo_clip", "decoupled_ppo", "cispo", "gspo"), ("ratio_low", "ratio_high")),
    Reader("loss", ("ppo_clip", "cispo", "gspo"), ("ratio_to",)),
    Reader("loss", ("ppo_clip", "decoupled_ppo", "gspo"), ("dual_clip",)),
    Reader("loss", ("decoupled_ppo",), ("proximal", "correction")),
    Reader("loss", ("reinforce",), ("weight_cap",)),
    Reader("correction", ("cap", "mask"), ("correction_high",)),
    Reader("correction", ("mask",), ("correction_low",)),
    Reader("sequence_gate", ("product", "geometric"), ("gate_low",)),
    Reader("sequence_gate", ("product", "geometric", "bernoulli_kl"), ("gate_high",)),
    Reader("aggregation", ("seq_mean_token_sum_norm",), ("length_norm",)),
    Reader("kl.controller", ("ziegler",), ("kl.target", "kl.horizon")),
    Reader("kl.controller", ("band",), ("kl.low", "kl.high")),
)


def unread_options(values: Mapping[str, Any]) -> dict[str, str]:
    """Option -> why nothing reads it with these choices; names and values are those below ``algorithm.``, all of them."""
    found: dict[str, str] = {}
    if not values["kl.coefficient"]:
        why = "while algorithm.kl.coefficient is 0: set a coefficient or drop it"
        found |= {o: f"algorithm.{o} is not read {why}" for o in values if o.startswith("kl.") and o != "kl.coefficient"}
    if values["overlong_limit"] is None:
        found["overlong_cache"] = "algorithm.overlong_cache is not read without algorithm.overlong_limit: set both or neither"
    for reader in READERS:
        chosen = values[reader.setting]
        if reader.setting not in found and chosen in reader.values:
            continue
        for option in reader.options:
            found.setdefault(option, _complaint(values, reader, option))
    return found


def _complaint(values: Mapping[str, Any], reader: Reader, option: str) -> str:
    chosen = values[reader.setting]
    read = [o for r in READERS if r.setting == reader.setting and chosen in r.values for o in r.options]
    instead = f"; '{chosen}' reads {', '.join(f'algorithm.{o}' for o in read)}" if read else ""
    readers = " or ".join(f"{reader.setting}={value}" for value in reader.values)
    return f"algorithm.{option} is not read with algorithm.{reader.setting}={chosen}: choose {readers}, or drop it{instead}"
