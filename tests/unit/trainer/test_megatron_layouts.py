"""Real gloo processes give what one gives, however model and batch are spread: losses, gradients, weights, and who stops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from trainer_samples import reference_model, trained

from agentrl.config.layout import LayoutSettings, ModelSizes
from agentrl.errors import UsageError
from agentrl.trainer.megatron.architecture import transformer_config
from agentrl.trainer.megatron.microbatch import Row, Shard, collate
from benchmarks.trainer.layouts import Comparison, case, compare, difference

CASES = {
    "data": case(data=2),
    "distributed_optimizer": case("llama", data=2, distributed_optimizer=True, recompute=True),
    "tensor_with_sequence_parallel": case("qwen3", tensor=2, sequence_parallel=True),
    "tied_pipeline": case("llama", tied=True, pipeline=2),
    "context": case("qwen2", context=2),
    "critic_tensor": case("qwen2", role="critic", tensor=2),
    "experts_tensor": case("qwen3_moe", tensor=2, sequence_parallel=True),
    "experts_pipeline": case("qwen3_moe", tied=True, pipeline=2),
}

SAVED = ("distributed_optimizer", "tensor_with_sequence_parallel", "tied_pipeline", "critic_tensor", "experts_tensor")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Comparison]:
    folder = tmp_path_factory.mktemp("checkpoints")
    cases = [{**one, "checkpoint": str(folder / name)} if name in SAVED else one for name, one in CASES.items()]
    return dict(zip(CASES, compare(cases, 2), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_every_rank_joins__two_processes_equal_one(compared: Mapping[str, Comparison], name: str) -> None:
    """Uneven batches, one with a single row, one without rows, and one with a NaN that stops both ranks."""
    found = compared[name]
    assert found.agrees, dict(found.worst)
    assert found.worst["weights"] is not None


@pytest.mark.parametrize("name", SAVED)
def test_any_layout__a_checkpoint_of_two_processes_goes_on_in_one(compared: Mapping[str, Comparison], name: str) -> None:
    resumed = compared[name].resumed
    assert resumed is not None
    assert resumed[1] == pytest.approx(resumed[0], abs=2e-4)


def test_difference__sees_what_differs() -> None:
    same = {"a": torch.ones(2), "b": [1.0, 2.0]}
    assert difference(same, same) == 0
    assert difference(same, {"a": torch.ones(2), "b": [1.0, 2.5]}) == 0.5


@pytest.mark.parametrize(
    ("layout", "numbers"),
    [
        ({"tensor": 8}, ["tensor (8)", "4 attention heads", "use one of 1, 2, 4"]),
        ({"tensor": 4}, ["tensor (4)", "2 key-value heads", "use one of 1, 2"]),
        ({"pipeline": 3}, ["pipeline (3)", "2 layers", "use one of 1, 2"]),
    ],
)
def test_layout_that_does_not_divide__both_numbers_and_the_remedy(layout: dict[str, int], numbers: list[str]) -> None:
    told = "; ".join(LayoutSettings(**layout).misfits(ModelSizes(layers=2, heads=4, kv_heads=2, ffn=48)))
    for number in numbers:
        assert number in told


def test_experts_over_tensor_ranks__need_sequence_parallel() -> None:
    config = reference_model("qwen3_moe").config.to_dict()
    with pytest.raises(UsageError, match=r"tensor=2 with a mixture of experts needs .*sequence_parallel=true"):
        transformer_config(config, LayoutSettings(tensor=2), on_gpu=False)
    with pytest.raises(UsageError, match=r"tensor \(16\) does not divide the model's 24 MLP columns"):
        transformer_config(
            {**config, "num_attention_heads": 16, "num_key_value_heads": 16}, LayoutSettings(tensor=16), on_gpu=False
        )


def test_layout_that_divides__no_complaint() -> None:
    assert not LayoutSettings(tensor=2, pipeline=2, data=3).misfits(ModelSizes(layers=2, heads=4, kv_heads=2, ffn=48))


@pytest.mark.parametrize("layout", [{"sequence_parallel": True}, {"distributed_optimizer": True}])
def test_option_without_ranks_to_work_on__refused(layout: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="needs"):
        LayoutSettings(**layout)


def test_more_ranks_than_processes__refused_with_both_numbers() -> None:
    with pytest.raises(UsageError, match=r"needs 2 processes .* 1 were started"):
        trained(reference_model(), layout=LayoutSettings(tensor=2))


@pytest.mark.parametrize("packed", [False, True])
def test_shared_rows__each_position_belongs_to_one_rank_and_nothing_is_lost(packed: bool) -> None:
    rows = [Row(torch.arange(n), torch.arange(1, n)) for n in (9, 5, 14)]
    shards = [collate(rows, (0, 1, 2), torch.device("cpu"), Shard(part, 2, 2, packed)) for part in range(2)]
    owned = torch.cat([shard.owned for shard in shards])
    assert sorted(owned.tolist()) == list(range(sum(len(row.positions) for row in rows)))
    for shard in shards:
        assert shard.n_positions == len(owned)
        flat = shard.token_ids.t().flatten()
        assert torch.equal(flat[shard.source] + 1, shard.targets)  # tokens count up: the state before a token is one less
        assert shard.token_ids.shape[1] % 2 == 0


def test_packed_shares__each_rank_has_its_two_chunks_of_each_row_at_their_places() -> None:
    rows = [Row(torch.arange(n), torch.arange(1, n)) for n in (9, 5, 14)]
    shards = [collate(rows, (0, 1, 2), torch.device("cpu"), Shard(part, 2, 1, packed=True)) for part in range(2)]
    assert shards[0].lengths == shards[1].lengths == (8, 4, 16)
    for part, shard in enumerate(shards):
        assert shard.token_ids.shape == (1, 14)
        for line, row, width in zip(shard.places.split([4, 2, 8]), rows, (8, 4, 16), strict=True):
            quarters = torch.arange(width).chunk(4)
            assert torch.equal(line, torch.cat([quarters[part], quarters[3 - part]]))
            assert row.length <= width
    empty = collate(rows, (), torch.device("cpu"), Shard(0, 2, 2, packed=True))
    assert empty.token_ids.shape[1] % 2 == 0
    assert empty.n_positions == 0
