"""From preset, overlay, file and flags to one `RunConfig`, each value with its origin.

Precedence: flag > file > overlay > environment > preset > default. Every key that a user gives is used, or refused with the
nearest name.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from agentrl.config.algorithm import option_choices, option_defaults
from agentrl.config.nearest import nearest
from agentrl.config.options import unread_options
from agentrl.config.presets import PRESETS, TINY_REASON
from agentrl.config.run import RunConfig
from agentrl.config.schedule import LAGS
from agentrl.errors import UsageError

OPTIONS = "environment_options."
"""Prefix of settings that the environment itself declares and checks."""
_FILE = "file "
"""What the origin of a setting begins with that a file gave."""
_CHOOSING = ("environment", "preset")
"""Settings that decide which layers there are."""
_RATIO_BOUNDS = ("algorithm.ratio_low", "algorithm.ratio_high")
_SIZES = ("hidden", "layers", "heads", "kv_heads", "ffn", "max_context")
"""Settings of `agentrl.config.run.ModelSettings` that a model which is given brings itself."""


@dataclass(frozen=True)
class Resolved:
    """A configuration and where each value that is not a default came from (dotted key -> origin)."""

    config: RunConfig
    origins: Mapping[str, str]

    @property
    def hash(self) -> str:
        """Content hash of the values; two runs with equal hashes mean the same thing."""
        return config_hash(self.config)

    def with_options(self, options: Mapping[str, Any]) -> Resolved:
        """The same with the environment's options as the environment understood them."""
        return replace(self, config=self.config.model_copy(update={"environment_options": dict(options)}))


def config_hash(config: RunConfig) -> str:
    """sha256 over the canonical JSON of the values."""
    return hashlib.sha256(json.dumps(config.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def resolve(
    *,
    environment: str | None,
    preset: str | None,
    file: Path | None,
    flags: Mapping[str, Any],
    overrides: Sequence[str],
    defaults_of: Callable[[str], Mapping[str, Any]] = lambda environment: {},
) -> Resolved:
    """Build the configuration of a new run. `UsageError` names the key, its origin and the nearest valid one.

    ``defaults_of`` says, by name, which settings an environment brings along. Ratio bounds among them are those of the loss
    ``dis``, whose bounds belong to the task; another loss keeps the preset's. A preset that is strictly synchronous stays so.
    """
    from_file = _read_file(file) if file else {}
    flags = {k: v for k, v in {**flags, "preset": preset, "environment": environment}.items() if v is not None}
    from_flags = _without_contradictions(flags, _parse_overrides(overrides))
    origins = {key: f"{_FILE}{file}" for key in _CHOOSING if key in from_file}
    origins |= {key: "flag" for key in _CHOOSING if key in from_flags}
    preset = _text("preset", from_flags, from_file) or "sao_turn"
    if preset not in PRESETS:
        raise UsageError(f"Unknown preset '{preset}'.{nearest(preset, list(PRESETS))} Presets: {', '.join(PRESETS)}.")
    environment = _text("environment", from_flags, from_file)
    if not environment:
        raise UsageError("No environment given: use --env NAME, for example --env code_agent.")
    layers: list[tuple[str, Mapping[str, Any]]] = [(f"preset {preset}", PRESETS[preset].values)]
    model = from_flags.get("model.path") or from_file.get("model.path")
    loss = {**PRESETS[preset].values, **from_file, **from_flags}.get("algorithm.loss")
    brought = {k: v for k, v in defaults_of(environment).items() if loss == "dis" or k not in _RATIO_BOUNDS}
    if PRESETS[preset].values.get("staleness.eta") == 0:
        brought.pop("staleness.eta", None)
    if model:
        brought = {k: v for k, v in brought.items() if not _of_small_model(k)}
        _refuse_small_model(model, (f"file {file}", from_file), ("flag", from_flags))
    layers.append((f"environment {environment}", brought))
    if not model:
        layers.append((f"overlay tiny: {TINY_REASON}", PRESETS[preset].tiny))
    layers += _lag_of_schedule([*(layer for _, layer in layers), from_file, from_flags])
    layers += [(f"{_FILE}{file}", from_file), ("flag", from_flags)]
    values: dict[str, Any] = {"environment": environment, "preset": preset}
    for origin, layer in layers:
        for key, value in layer.items():
            _check_key(key, origin)
            _set(values, key, value)
            origins[key] = origin
    if _eta_decides(from_file, from_flags) and origins.pop("staleness.lag", None) is not None:
        _set(values, "staleness.lag", None)
    _drop_unread(values, origins, {*from_file, *from_flags})
    return Resolved(_validate(values, origins), origins)


def _of_small_model(key: str) -> bool:
    section, _, name = key.partition(".")
    return section == "warm_start" or (section == "model" and name in _SIZES)


def _refuse_small_model(path: object, *layers: tuple[str, Mapping[str, Any]]) -> None:
    """`UsageError` for settings of the model that is built here, while another one is given."""
    for origin, layer in layers:
        if unread := [key for key in layer if _of_small_model(key)]:
            raise UsageError(
                f"Setting {', '.join(unread)} is for the small model that is built where none is given, but model.path is "
                f"{path} ({origin}): leave one of them out."
            )


def _eta_decides(*layers: Mapping[str, Any]) -> bool:
    """Whether the bound of the last layer that the user gave one in is an eta. `UsageError` for a layer that has two."""
    named = [layer for layer in layers if layer.keys() & {"staleness.eta", "staleness.lag"}]
    last = named[-1] if named else {}
    eta, lag = last.get("staleness.eta"), last.get("staleness.lag")
    if eta is not None and lag is not None:
        raise UsageError(f"staleness.eta ({eta}) and staleness.lag ({lag}) both set the lag bound: keep one.")
    return eta is not None


def _lag_of_schedule(layers: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """The lag bound that the schedule of the layers, the last that names one, brings along."""
    named = [layer["trainer.schedule"] for layer in layers if layer.get("trainer.schedule") is not None]
    if not named or not isinstance(named[-1], str) or named[-1] not in LAGS:
        return []
    return [(f"schedule {named[-1]}", {"staleness.lag": LAGS[named[-1]]})]


def environment_options(settings: Sequence[str]) -> dict[str, Any]:
    """The options among ``environment_options.NAME=VALUE`` texts; `UsageError` for any other setting."""
    options: dict[str, Any] = {}
    for key, value in _parse_overrides(settings).items():
        if not key.startswith(OPTIONS):
            raise UsageError(f"'{key}' is no setting of an environment: write {OPTIONS}{key}=...")
        options[key.removeprefix(OPTIONS)] = value
    return options


def _drop_unread(values: dict[str, Any], origins: dict[str, str], given: set[str]) -> None:
    """Takes out what a preset set and the user's choices no longer read; `UsageError` when the user set it."""
    algorithm = values.get("algorithm", {})
    options = option_defaults() | {k: v for k, v in flatten(algorithm) if k in option_defaults()}
    if any(options[name] not in allowed for name, allowed in option_choices().items()):
        return  # the validation names the wrong value
    for option, complaint in unread_options(options).items():
        key = f"algorithm.{option}"
        if key in given:
            raise UsageError(f"Setting {complaint} ({origins[key]}).")
        if origins.pop(key, None) is not None:
            *path, last = option.split(".")
            section = algorithm
            for part in path:
                section = section[part]
            del section[last]


def _without_contradictions(flags: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    for key in flags.keys() & settings.keys():
        if flags[key] != settings[key]:
            raise UsageError(f"'{key}' is given twice: {flags[key]!r} by a flag and {settings[key]!r} as {key}=...; keep one.")
    return {**flags, **settings}


def _text(key: str, from_flags: dict[str, Any], from_file: dict[str, Any]) -> str | None:
    """Takes a setting that decides about others out of its layers; it is text or absent."""
    of_file, of_flag = from_file.pop(key, None), from_flags.pop(key, None)
    value = of_file if of_flag is None else of_flag
    if value is not None and not isinstance(value, str):
        raise UsageError(f"'{key}' must be text, got {value!r}.")
    return value


def _validate(values: dict[str, Any], origins: Mapping[str, str]) -> RunConfig:
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        lines = []
        for item in error.errors():
            key = ".".join(str(part) for part in item["loc"])
            given = f" (from {_place(origins[key], key)}, got {item['input']!r})" if key in origins else ""
            if item["type"] == "literal_error":
                given += nearest(str(item["input"]), re.findall(r"'([^']*)'", item["ctx"]["expected"]))
            lines.append(f"{key + ': ' if key else ''}{item['msg'].removeprefix('Value error, ')}{given}")
        wrong = "; ".join(lines)
        raise UsageError(f"The configuration is not valid. {wrong}{'' if wrong.endswith('?') else '.'}") from None


def known_keys(model: type[BaseModel] = RunConfig, prefix: str = "") -> Iterator[str]:
    """Dotted names of all settings."""
    for name, info in model.model_fields.items():
        sections = [a for a in _annotations(info.annotation) if isinstance(a, type) and issubclass(a, BaseModel)]
        if sections:
            yield from known_keys(sections[0], f"{prefix}{name}.")
        if not sections or type(None) in _annotations(info.annotation):
            yield prefix + name


def _annotations(annotation: Any) -> tuple[Any, ...]:
    return getattr(annotation, "__args__", None) or (annotation,)


def _check_key(key: str, origin: str) -> None:
    keys = list(known_keys())
    if key.startswith(OPTIONS) and key.count(".") == 1:
        return
    if key not in keys:
        raise UsageError(
            f"Unknown setting '{key}' ({_place(origin, key)}).{nearest(key, keys)} `agentrl config show` lists all settings."
        )


def _place(origin: str, key: str) -> str:
    """The origin; of a file, with the line on which the setting ends."""
    if not origin.startswith(_FILE):
        return origin
    lines = Path(origin.removeprefix(_FILE)).read_text().splitlines()
    for number in range(1, len(lines) + 1):
        try:
            known = dict(flatten(tomllib.loads("\n".join(lines[:number]))))
        except tomllib.TOMLDecodeError:
            continue  # in the middle of a value
        if key in known:
            return f"{origin}, line {number}"
    return origin


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *path, last = key.split(".")
    for part in path:
        inner = values.setdefault(part, {})
        if inner is None:
            raise UsageError(f"'{key}' is set, but this preset has no {part}: choose another preset or drop the setting.")
        values = inner
    values[last] = value


def _read_file(path: Path) -> dict[str, Any]:
    try:
        data = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(f"Config file {path} does not exist.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"Config file {path} can't be read: {error}.") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"Config file {path} is not valid TOML: {error}.") from None
    return dict(flatten(data))


def flatten(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested tables to dotted keys."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _refuse_two_values(overrides: Sequence[str]) -> None:
    given: dict[str, str] = {}
    for item in overrides:
        key, _, text = item.removeprefix("--").partition("=")
        if given.setdefault(key, text) != text:
            raise UsageError(f"'{key}' is given twice: {given[key]} and {text}; keep one.")


def _parse_overrides(overrides: Sequence[str]) -> dict[str, Any]:
    _refuse_two_values(overrides)
    parsed: dict[str, Any] = {}
    for item in overrides:
        key, separator, text = item.removeprefix("--").partition("=")
        if not separator:
            raise UsageError(f"'{item}' is not a setting: write KEY=VALUE, for example trainer.steps=50.")
        parsed[key] = text if text in _CHOICES.get(key, ()) else _value(text)
    return parsed


_CHOICES = {f"algorithm.{name}": choices for name, choices in option_choices().items()}
"""Some have a choice that is called none."""


def _value(text: str) -> Any:
    if text.lower() in ("none", "null"):
        return None
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text
