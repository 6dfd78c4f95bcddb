"""From preset, overlay, file and flags to one configuration (no_silent_option)."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.config.load import Resolved, environment_options, known_keys, resolve
from agentrl.config.presets import PRESETS
from agentrl.config.run import RunConfig
from agentrl.config.stored import from_row, to_row
from agentrl.errors import UsageError


def resolved(**changes: object) -> Resolved:
    arguments: dict = {"environment": "code_agent", "preset": None, "file": None, "flags": {}, "overrides": []}
    return resolve(**{**arguments, **changes})


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_preset_alone__is_valid_and_small(preset: str) -> None:
    config = resolved(preset=preset).config
    assert config.trainer.batch == PRESETS[preset].tiny["trainer.batch"]
    assert config.staleness.bound == 1


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_preset_with_model__has_no_overlay(preset: str) -> None:
    config = resolved(preset=preset, flags={"model.path": "/some/model"}).config
    assert config.trainer.learning_rate == RunConfig(environment="e").trainer.learning_rate
    assert config.staleness.lag is None


def test_precedence__flag_over_file_over_overlay(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[trainer]\nsteps = 7\nbatch = 32\n")
    result = resolved(file=file, overrides=["trainer.steps=9"])
    assert (result.config.trainer.steps, result.config.trainer.batch) == (9, 32)
    assert result.origins["trainer.steps"] == "flag"
    assert result.origins["trainer.batch"] == f"file {file}"


def test_preset_as_a_setting__chooses_the_preset(tmp_path: Path) -> None:
    assert resolved(overrides=["preset=grpo"]).config.algorithm.advantage == "group"
    file = tmp_path / "run.toml"
    file.write_text('preset = "grpo"\n')
    assert resolved(file=file).config.algorithm.advantage == "group"
    assert resolved(file=file, preset="sao").config.algorithm.advantage == "token_gae"
    assert resolved(environment=None, overrides=["environment=code_agent"]).config.environment == "code_agent"


@pytest.mark.parametrize("text", ["preset = 5\n", 'preset = ["grpo"]\n', "[nonsense]\n"])
def test_odd_file__is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(UsageError):
        resolved(file=file)
    with pytest.raises(UsageError, match="can't be read"):
        resolved(file=file / "below")


def test_eta_given__replaces_the_overlays_lag() -> None:
    assert resolved(overrides=["staleness.eta=0.5"]).config.staleness.bound == 8


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"preset": "sao_trun"}, "Did you mean 'sao_turn'?"),
        ({"overrides": ["trainer.stepz=3"]}, "Did you mean 'trainer.steps'?"),
        ({"overrides": ["steps"]}, "write KEY=VALUE"),
        ({"overrides": ["trainer.batch=-1"]}, "trainer.batch"),
        ({"preset": "grpo", "overrides": ["trainer.batch=60"]}, "use 56 or 64"),
        ({"preset": "grpo", "overrides": ["trainer.batch_min=20"]}, "trainer.batch_min (20) must be a multiple"),
        ({"overrides": ["trainer.batch_min=65"]}, "trainer.batch_min (65) is above trainer.batch (64)"),
        ({"overrides": ["trainer.batch_min=32", "staleness.lag=0"]}, "contradicts trainer.schedule=synchronous"),
        ({"preset": "grpo", "overrides": ["algorithm.critic.learning_rate=1e-3"]}, "this preset has no critic"),
        ({"overrides": ["algorithm.advantage=group"]}, "has no critic"),
        ({"overrides": ["algorithm.loss=reinforced"]}, "from flag, got 'reinforced'"),
        ({"overrides": ["algorithm.loss=[1]"]}, "algorithm.loss"),
        ({"overrides": ["algorithm.dual_clip=3.0"]}, "choose loss=ppo_clip or loss=decoupled_ppo or loss=gspo"),
        ({"overrides": ["algorithm.dual_clip=none"]}, "'dis' reads algorithm.ratio_low, algorithm.ratio_high"),
        ({"preset": "grpo", "overrides": ["algorithm.gae_lambda=1.0"]}, "advantage=turn_gae or advantage=token_gae"),
        ({"preset": "grpo", "overrides": ["algorithm.lambda_alpha=2.0"]}, "Setting algorithm.lambda_alpha is not read"),
        ({"overrides": ["algorithm.token_lambda=0.9"]}, "choose mapping=hierarchical"),
        ({"overrides": ["algorithm.kl.estimator=k2"]}, "algorithm.kl.coefficient is 0"),
        ({"overrides": ["algorithm.kl.coefficient=0.1", "algorithm.kl.target=0.1"]}, "choose kl.controller=ziegler"),
        ({"overrides": ["algorithm.kl.coefficient=0.1", "algorithm.kl.estimator=k1"]}, "no gradient in expectation"),
        ({"preset": "decoupled_ppo", "overrides": ["algorithm.correction_high=3.0"]}, "correction=cap or correction=mask"),
        ({"overrides": ["algorithm.aggregation=seq_mean_token_sum_norm"]}, "algorithm.length_norm"),
        ({"overrides": ["algorithm.length_norm=5"]}, "aggregation=seq_mean_token_sum_norm"),
        ({"overrides": ["algorithm.normalise=trajectory"]}, "group, leave_one_out"),
        ({"overrides": ["algorithm.ratio_low=0"]}, "ratio_low above 0"),
        ({"overrides": ["algorithm.drop_uniform_groups=true"]}, "group_size is 1"),
        ({"overrides": ["algorithm.overlong_cache=3"]}, "without algorithm.overlong_limit"),
        ({"overrides": ["algorithm.overlong_limit=10", "algorithm.overlong_cache=20"]}, "the shortest trajectory would be"),
        ({"overrides": ["algorithm.sequence_gate=product", "algorithm.gate_high=0.5"]}, "must have 1 between them"),
        ({"overrides": ["algorithm.sequence_gate=geometric", "algorithm.gate_low=1.5"]}, "must have 1 between them"),
        ({"overrides": ["trainer.long_wait_s=5"]}, "not read without trainer.long_share"),
        ({"overrides": ["staleness.eta=0.3", "staleness.lag=5"]}, "staleness.eta (0.3) and staleness.lag (5)"),
        ({"flags": {"model.path": "mine"}, "overrides": ["warm_start.steps=3"]}, "but model.path is mine (flag)"),
        ({"overrides": ["model.path=mine", "model.layers=3", "model.ffn=64"]}, "Setting model.layers, model.ffn is for the"),
        ({"environment": None}, "--env"),
        ({"flags": {"staleness.lag": 0}, "overrides": ["staleness.lag=5"]}, "given twice"),
        ({"flags": {"seed": 1}, "overrides": ["seed=2"]}, "given twice"),
        ({"preset": "grpo", "overrides": ["preset=sao"]}, "given twice"),
        ({"overrides": ["trainer.steps=1", "trainer.steps=2"]}, "'trainer.steps' is given twice: 1 and 2; keep one."),
        ({"overrides": ["preset=nonsense"]}, "Unknown preset"),
        ({"overrides": ["preset=5"]}, "must be text"),
        ({"overrides": ["seed=99999999999999999999"]}, "seed"),
        ({"overrides": ["rollout.lease_s=inf"]}, "rollout.lease_s"),
        ({"overrides": ["trainer.learning_rate=inf"]}, "trainer.learning_rate"),
        ({"overrides": ["algorithm.gae_lambda=nan"]}, "algorithm.gae_lambda"),
        ({"overrides": ["algorithm.gae_lambda=-3"]}, "algorithm.gae_lambda"),
        ({"overrides": ["evaluation.split=train"]}, "trained on"),
        ({"overrides": ["trainer.long_tokens=100"]}, "belong together"),
        ({"overrides": ["trainer.long_share=0.25"]}, "belong together"),
        ({"overrides": ["staleness.group_deadline_s=60"]}, "group_size is 1"),
        ({"preset": "gspo", "overrides": ["staleness.mode=segment_mask"]}, "algorithm.loss=gspo weighs a trajectory by all"),
        ({"overrides": ["staleness.mode=segment_mask", "algorithm.sequence_gate=product"]}, "algorithm.sequence_gate=product"),
        ({"overrides": ["staleness.mode=segment_mask", "staleness.eta=1"]}, "staleness.eta=1 sets none: set staleness.lag"),
        ({"overrides": ["rollout.group_redundancy=1"]}, "group_size is 1"),
        ({"overrides": ["rollout.oversampling=1.5"]}, "but the lag bound is 1: set rollout.oversampling to 1 or less, or"),
        ({"overrides": ["rollout.oversampling=0.5", "staleness.lag=0"]}, "staleness.lag to 1 or more"),
        ({"overrides": ["rollout.oversampling=0.5", "trainer.schedule=drop_last"]}, "schedule drop_last opens nothing before"),
        ({"overrides": ["reward.concurrency=3"]}, "reward.concurrency is not read without reward workers"),
        ({"file": Path("/does/not/exist.toml")}, "does not exist"),
        ({"overrides": ["model.tool_format=hermse"]}, "Did you mean 'hermes'? Formats: auto, hermes, qwen3_coder"),
        ({"overrides": ["model.history=keep"]}, "'append' or 'template'"),
        ({"overrides": ["trainer.schedule=asink"]}, "(from flag, got 'asink') Did you mean 'async'?"),
    ],
)
def test_wrong_input__says_what_and_the_nearest(changes: dict, said: str) -> None:
    with pytest.raises(UsageError) as error:
        resolved(**changes)
    assert said in str(error.value)


def test_file_with_syntax_error__names_the_line(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[trainer]\nsteps = \n")
    with pytest.raises(UsageError, match=r"not valid TOML.*line 2"):
        resolved(file=file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[trainer]\nsteps = 5\nstepps = 3\n", "line 3). Did you mean 'trainer.steps'?"),
        ("seed = 1\n\n[trainer.layout]\n\ndata = 0\n", "line 5, got 0)"),
        ("[engine]\nurls = [\n  'a',\n]\nkind = 'vllm'\n", "line 5, got 'vllm')"),
    ],
)
def test_wrong_setting_in_a_file__names_file_and_line(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as error:
        resolved(file=file)
    assert f"file {file}, {said}" in str(error.value)


def test_environment_and_preset__have_an_origin_too(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("environment = 'qa_verify'\npreset = 'sao'\n")
    found = resolved(environment=None, file=file, flags={}, preset="grpo")
    assert (found.origins["environment"], found.origins["preset"]) == (f"file {file}", "flag")
    assert "preset" not in resolved().origins


def test_same_setting_given_twice_alike__is_one() -> None:
    assert resolved(overrides=["trainer.steps=7", "trainer.steps=7"]).config.trainer.steps == 7


def test_environment_options__are_kept_for_the_environment_to_check(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[environment_options]\ndata = 'a.jsonl'\nmost = 3\n")
    found = resolved(file=file, overrides=["environment_options.most=4"])
    assert found.config.environment_options == {"data": "a.jsonl", "most": 4}
    assert found.origins["environment_options.most"] == "flag"
    assert found.with_options({"data": "/a.jsonl"}).hash != found.hash
    assert environment_options(["environment_options.a=1", "environment_options.b=text"]) == {"a": 1, "b": "text"}
    for wrong in (["environment_options.a.b=1"], ["environment_option.a=1"]):
        with pytest.raises(UsageError, match="Unknown setting"):
            resolved(overrides=wrong)


def test_every_preset_and_overlay_key__exists() -> None:
    keys = set(known_keys())
    for preset in PRESETS.values():
        assert {*preset.values, *preset.tiny} <= keys


@pytest.mark.parametrize("preset", sorted(PRESETS))
@pytest.mark.parametrize("flags", [{}, {"model.path": "/some/model"}])
def test_preset__names_its_source_and_sets_nothing_that_nobody_reads(preset: str, flags: dict) -> None:
    assert PRESETS[preset].source
    result = resolved(preset=preset, flags=flags)
    layers = {**PRESETS[preset].values, **({} if flags else PRESETS[preset].tiny)}
    assert set(layers) <= set(result.origins)  # nothing was taken out as unread


@pytest.mark.parametrize("preset", sorted(name for name, p in PRESETS.items() if "algorithm.group_size" in p.values))
def test_group_preset__has_groups_of_eight(preset: str) -> None:
    assert resolved(preset=preset).config.algorithm.group_size == 8


def test_presets__are_those_of_the_documentation() -> None:
    critics = {"sao_turn", "sao", "ppo", "decoupled_ppo", "turn_ppo"}
    groups = {"grpo_dis", "grpo", "dr_grpo", "dapo", "rloo", "gspo", "cispo"}
    assert set(PRESETS) == critics | groups | {"reinforce_pp"}


def test_ratio_bounds_of_dis__belong_to_environment_and_preset() -> None:
    def asks(name: str) -> dict[str, float]:
        return {"algorithm.ratio_low": 0.7, "algorithm.ratio_high": 6.0}

    real = {"model.path": "/some/model"}
    own = resolved(preset="sao", flags=real, defaults_of=asks)
    assert (own.config.algorithm.ratio_low, own.config.algorithm.ratio_high) == (0.7, 6.0)
    assert own.origins["algorithm.ratio_high"] == "environment code_agent"
    assert resolved(preset="sao", flags=real).config.algorithm.ratio_high == 4.0
    assert resolved(preset="grpo", flags=real, defaults_of=asks).config.algorithm.ratio_high == 1.28
    chosen = resolved(preset="sao", flags=real, defaults_of=asks, overrides=["algorithm.ratio_high=5.0"])
    assert chosen.config.algorithm.ratio_high == 5.0
    with pytest.raises(UsageError, match=r"algorithm\.ratio_low"):
        resolved(flags=real, defaults_of=lambda name: {"algorithm.ratio_low": "low"})


def test_defaults_of_the_environment__are_between_preset_and_overlay() -> None:
    brought, tiny = {"staleness.eta": 0.4, "trainer.batch": 32}, PRESETS["sao_turn"].tiny
    small = resolved(defaults_of=lambda name: brought)
    assert small.origins["staleness.eta"] == "environment code_agent"
    assert (small.config.staleness.eta, small.config.staleness.bound) == (0.4, tiny["staleness.lag"])
    assert small.config.trainer.batch == tiny["trainer.batch"]
    large = resolved(defaults_of=lambda name: brought, flags={"model.path": "/some/model"})
    assert (large.config.staleness.bound, large.config.trainer.batch) == (5, 32)
    assert resolved(defaults_of=lambda name: brought, overrides=["staleness.eta=0.2"]).config.staleness.bound == 2


def test_choice_called_none__can_be_given() -> None:
    given = resolved(overrides=["algorithm.normalise=none", "algorithm.sequence_gate=none", "algorithm.td_window=none"])
    assert (given.config.algorithm.normalise, given.config.algorithm.td_window) == ("none", None)


def test_lag_and_eta__the_later_of_file_and_flags_decides(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[staleness]\nlag = 3\n")
    assert resolved(file=file).config.staleness.bound == 3
    assert resolved(file=file, overrides=["staleness.eta=0.5"]).config.staleness.bound == 8
    file.write_text("[staleness]\neta = 0.5\n")
    assert resolved(file=file, overrides=["staleness.lag=3"]).config.staleness.bound == 3


def test_model_given__what_an_environment_brings_for_the_small_one_is_left_out() -> None:
    brought = {"model.max_context": 256, "warm_start.steps": 9, "trainer.batch": 32}
    given = resolved(defaults_of=lambda name: brought, flags={"model.path": "mine"})
    assert set(given.origins) & set(brought) == {"trainer.batch"}
    assert resolved(defaults_of=lambda name: brought).config.warm_start.steps == 9


def test_unknown_default_of_an_environment__is_refused_with_its_origin() -> None:
    with pytest.raises(UsageError, match=r"'staleness.etta' \(environment code_agent\).*'staleness.eta'"):
        resolved(defaults_of=lambda name: {"staleness.etta": 0.4})


def test_choice_that_a_preset_did_not_expect__takes_out_what_it_set_and_nobody_reads() -> None:
    result = resolved(preset="reinforce_pp", overrides=["algorithm.kl.coefficient=0"])
    assert not result.config.algorithm.needs_reference
    assert "algorithm.kl.place" not in result.origins
    assert resolved(preset="dr_grpo", overrides=["algorithm.aggregation=token_mean"]).config.algorithm.length_norm is None


def test_hash__changes_with_a_value_and_not_with_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[trainer]\nsteps = 9\n")
    assert resolved(file=file).hash == resolved(overrides=["trainer.steps=9"]).hash != resolved().hash


def test_stored_row__round_trip(tmp_path: Path) -> None:
    config = resolved(preset="grpo").config
    assert from_row(to_row(config, tmp_path)) == (config, tmp_path)


def test_refresh_interval_beyond_the_lag_bound__names_both_numbers_and_the_way_out() -> None:
    with pytest.raises(UsageError, match=r"refresh_every \(4\).*bound is 2.*refresh_every to 3 or less.*lag to 3 or more"):
        resolved(overrides=["staleness.refresh_every=4", "staleness.lag=2"])
    assert resolved(overrides=["staleness.refresh_every=3", "staleness.lag=2"]).config.staleness.refresh_every == 3
