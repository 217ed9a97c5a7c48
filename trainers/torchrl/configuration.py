"""Composition of an experiment's groups into one TorchRL configuration, like its ``train.py``.

Used by the algorithm trainers and for the keys of their stages. Hydra and TorchRL are imported on
use.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
import warnings
from collections.abc import Mapping
from copy import deepcopy
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from ratchet.errors import ParameterError, nearest
from ratchet.parameters.compatibility.torchrl_names import package_of
from trainers.torchrl.environment import MAKER, transform_configs
from trainers.torchrl.environment_facts import environment_facts

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from ratchet.parameters.hyper_parameters import HyperParameters

logger = logging.getLogger(__name__)

DEFAULTS = Path(__file__).parent / "defaults"
_ACTOR_CRITIC = ("environment", "on_policy", "actor_critic", "{kind}_policy")
_QVALUES_OF_GROUPS = (
    "environment",
    "replay",
    "off_policy",
    "qvalue",
    "group/common",
    "group/qvalue",
)
_WITH_QVALUES = ("environment", "replay", "off_policy", "qvalue", "qvalue_networks")
_FRAGMENTS = {
    "ppo": _ACTOR_CRITIC,
    "a2c": _ACTOR_CRITIC,
    "reinforce": _ACTOR_CRITIC,
    "dqn": ("environment", "replay", "off_policy", "qvalue_policy"),
    "sac": (*_WITH_QVALUES, "normal_policy"),
    "cql": (*_WITH_QVALUES, "normal_policy"),
    "iql": (*_WITH_QVALUES, "normal_policy"),
    "offline_to_online": (
        *("environment", "off_policy", "qvalue", "qvalue_networks", "normal_policy"),
    ),
    "td3": (*_WITH_QVALUES, "deterministic_policy"),
    "ddpg": (*_WITH_QVALUES, "deterministic_policy"),
}
_OF_GROUPS = {
    "ppo": (
        "environment",
        "on_policy",
        "group/common",
        "group/actor_critic",
        "group/{kind}_policy",
    ),
    "sac": (*_QVALUES_OF_GROUPS, "group/normal_policy"),
    "ddpg": (*_QVALUES_OF_GROUPS, "group/deterministic_policy"),
    "dqn": ("environment", "replay", "off_policy", "group/common", "group/qvalue_policy"),
}
"""For environments whose agents form a group: MAPPO, MASAC, MADDPG, independent Q-learning."""
_ACTIONS = {"dqn": "discrete", "sac": "continuous", "cql": "continuous"} | {
    name: "continuous" for name in ("iql", "td3", "ddpg", "offline_to_online")
}
UNREAD = ("logger", "checkpoint", "checkpoint_rotation", "save_trainer_file")
"""Parts of the library's trainer that the tracker and the stage store replace."""
_BASE_ENVIRONMENT = "training_env.base_env"
_LOCK = threading.Lock()
_RESOLVER_CALL = re.compile(r"\$\{[^}]*:")
"""E.g. ``${oc.env:HOME}``, whose value may change within a process."""


def trainer_parameters(hyper_params: HyperParameters) -> dict[str, Any]:
    """Return the composed configuration of the trainer as plain data, references resolved."""
    return resolved_trainer(configuration_content(hyper_params))


def resolved_trainer(content: str) -> dict[str, Any]:
    """Return the configuration of the trainer from :func:`configuration_content`."""
    resolve = _resolved.__wrapped__ if _RESOLVER_CALL.search(content) else _resolved
    with _LOCK:
        return deepcopy(resolve(content))


def configuration_content(hyper_params: HyperParameters) -> str:
    """Return all inputs of the configuration as JSON."""
    content: dict[str, Any] = {
        "algorithm": hyper_params.trainer_name.removeprefix("torchrl_"),
        "facts": {},
        "config": hyper_params.torchrl.config,
        "choices": hyper_params.torchrl.choices,
    }
    if "defaults" in content["config"]:  # references may point to it
        _refuse_arguments(hyper_params)
        content["config"] = {"seed": hyper_params.seed, **content["config"]}
    else:
        content["facts"] = environment_facts(hyper_params)
        content["transforms"] = transform_configs(hyper_params.torchrl.transforms)
    return json.dumps(content)


def _refuse_arguments(hyper_params: HyperParameters) -> None:
    """Refuse arguments in sections for an environment that the configuration creates."""
    section = hyper_params.gymnasium
    for path, value in (
        ("gymnasium.environment_kwargs", section.environment_kwargs),
        ("gymnasium.max_episode_steps", section.max_episode_steps),
        ("gymnasium.wrappers", [wrapper.name for wrapper in section.wrappers]),
        ("torchrl.transforms", [transform.name for transform in hyper_params.torchrl.transforms]),
    ):
        if value:
            raise ParameterError(
                f"{path}: got {value!r}, but the environment is created by the library's"
                " configuration. Set it there, or leave its list of `defaults` out."
            )


@lru_cache(maxsize=16)
def _resolved(content: str) -> dict[str, Any]:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    trainer = _composed(content).copy().trainer
    for name in set(UNREAD) & set(trainer.keys()):
        trainer[name] = _followed(trainer, name)
    try:
        plain: dict[str, Any] = _without_tuples(OmegaConf.to_container(trainer, resolve=True))
    except OmegaConfBaseException as error:
        raise _parameter_error(error) from error
    return plain


def _followed(trainer: DictConfig, name: str) -> object:
    """Return the value of an unread name; None if its references cannot be resolved."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        value = trainer.get(name)
        return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    except OmegaConfBaseException:
        return None


def _without_tuples(tree: Any) -> Any:  # noqa: ANN401 -- plain data
    """Convert tuples to lists: Hydra's instantiation refuses OmegaConf's newer tuples."""
    if isinstance(tree, Mapping):
        return {str(name): _without_tuples(value) for name, value in tree.items()}
    return [_without_tuples(item) for item in tree] if isinstance(tree, list | tuple) else tree


@lru_cache(maxsize=16)
def _composed(content: str) -> DictConfig:
    inputs = json.loads(content)
    choices = inputs["choices"]
    facts = inputs["facts"]
    primary = _primary(inputs["algorithm"], facts, inputs["config"], choices)
    primary.pop("hydra", None)
    primary["defaults"] = _with_choices(primary["defaults"], choices)
    if facts:
        primary["environment"] = facts
    if facts and inputs["transforms"]:
        training = primary["training_env"]
        chain = training["transform"]
        chain = {**chain, "transforms": [*chain["transforms"], *inputs["transforms"]]}
        primary["training_env"] = {**training, "transform": chain}
    config = _compose(primary, f"experiment_{hashlib.sha256(content.encode()).hexdigest()[:16]}")
    if "trainer" not in config or "collector" not in config.trainer:
        raise ParameterError(
            "torchrl.config: got no `trainer` with a `collector`, expected the configuration"
            " of one of the library's trainers. Leave `defaults` out to build on Ratchet's."
        )
    return config


def _primary(
    algorithm: str,
    facts: Mapping[str, Any],
    config: Mapping[str, Any],
    choices: Mapping[str, str],
) -> dict[str, Any]:
    """Return the configuration with its defaults; it may refer to facts."""
    if "defaults" in config:
        return dict(config)
    kind = "categorical" if facts["discrete"] else "normal"
    expected = _ACTIONS.get(algorithm)
    if expected is not None and (expected == "discrete") != facts["discrete"]:
        actions = "discrete" if facts["discrete"] else "continuous"
        raise ParameterError(
            f"trainer: got torchrl_{algorithm} for {facts['name']!r}, whose actions are {actions};"
            f" expected {expected} ones. Choose torchrl_ppo, or another environment."
        )
    primary: dict[str, Any] = {"defaults": []}
    for name in _fragments(algorithm, facts):
        text = (DEFAULTS / f"{name.format(kind=kind)}.yaml").read_text(encoding="utf-8")
        _add_fragment(primary, yaml.safe_load(text))
    if "arguments" in facts:
        _take_maker(primary, facts["arguments"])
    for name, option in choices.items():
        if option is not None:
            _drop_unfit(primary, package_of(name), option)
    _add_fragment(primary, config)
    primary["defaults"].append("_self_")
    return primary


def _fragments(algorithm: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the fragments to merge."""
    if "group" not in facts:
        return (*_FRAGMENTS[algorithm], algorithm)
    if algorithm not in _OF_GROUPS:
        raise ParameterError(
            f"trainer: got torchrl_{algorithm} for {facts['name']!r}, whose agents form the group"
            f" {facts['group']!r}; expected one of"
            f" {', '.join(f'torchrl_{name}' for name in _OF_GROUPS)}, or a complete"
            " TorchRL configuration with its list of `defaults`."
        )
    return (*_OF_GROUPS[algorithm], algorithm)


def _take_maker(primary: dict[str, Any], arguments: Mapping[str, Any]) -> None:
    """Create the environment with Ratchet if the library lacks its class or arguments."""
    entries = [e for e in primary["defaults"] if package_of(e) != _BASE_ENVIRONMENT]
    maker = {"_target_": MAKER, "_convert_": "all", "name": "${environment.name}", **arguments}
    training = {**primary["training_env"], "base_env": maker}
    primary |= {"defaults": entries, "training_env": training}


def _add_fragment(primary: dict[str, Any], fragment: Mapping[str, Any]) -> None:
    """Merge a fragment; a later entry for a package replaces an earlier one."""
    from ratchet.parameters.reading.deep_merge import merge_nested

    packages = {package_of(entry): entry for entry in primary["defaults"]}
    packages |= {package_of(entry): entry for entry in fragment.get("defaults", ())}
    rest = {name: value for name, value in fragment.items() if name != "defaults"}
    merged = merge_nested({**primary, "defaults": list(packages.values())}, rest)
    primary.clear()
    primary.update(merged)


def _drop_unfit(primary: dict[str, Any], package: str, option: str) -> None:
    """Drop Ratchet's values for a package that the chosen option does not have."""
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException

    _register_groups()
    groups = [next(iter(e)) for e in primary["defaults"] if package_of(e) == package]
    values = primary.get(package)
    if not groups or not isinstance(values, dict):
        return
    group = groups[0].partition("@")[0]
    try:
        node = ConfigStore.instance().load(f"{group}/{option}.yaml").node
    except HydraException:  # unknown option: composing raises
        return
    names = set(node.keys())  # including those without a value, which `in` misses
    primary[package] = {name: value for name, value in values.items() if name in names}


def _with_choices(defaults: list[Any], choices: Mapping[str, str | None]) -> list[Any]:
    """Replace options of a list of defaults, add further ones, or remove some."""
    entries = {package_of(entry): entry for entry in defaults}
    for name, option in choices.items():
        package = package_of(name)
        if package in UNREAD and package not in entries:
            continue
        if package not in entries and ("@" not in name or option is None):
            raise ParameterError(
                f"{package}: got the option {option!r}, but `defaults` has none for it."
                f"{nearest(package, [known for known in entries if known != '_self_'])}"
                " Write `GROUP@PACKAGE=OPTION` to add one."
            )
        if option is None:
            del entries[package]
        elif "@" in name:
            entries = _put(entries, package, {name: option})
        else:
            entries[package] = {next(iter(entries[package])): option}
    return list(entries.values())


def _put(entries: dict[str, Any], package: str, entry: dict[str, str]) -> dict[str, Any]:
    """Replace a package's entry, or add a new one before the file's own values."""
    if package in entries or "_self_" not in entries:
        return {**entries, package: entry}
    rest = {name: value for name, value in entries.items() if name != "_self_"}
    return {**rest, package: entry, "_self_": entries["_self_"]}


def _compose(primary: dict[str, Any], name: str) -> DictConfig:
    from hydra import compose, initialize
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    _register_groups()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from Hydra, about OmegaConf's newer names
        try:
            ConfigStore.instance().store(name=name, node=OmegaConf.create(primary))
            with initialize(version_base=None, config_path=None):
                return compose(config_name=name)
        except (HydraException, OmegaConfBaseException) as error:
            raise _parameter_error(error) from error


def _register_groups() -> None:
    """Import the library's configs, which registers them with Hydra."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchrl.trainers.algorithms.configs  # noqa: F401


def _parameter_error(error: Exception) -> ParameterError:
    cause = error.__cause__ if error.__cause__ is not None else error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    words = "; ".join(dict.fromkeys(lines[:4]))
    return ParameterError(
        f"torchrl.config: the library's configuration cannot be composed: {words}."
        " Expected its groups, options and keys; see docs/guides/torchrl.md."
    )
