"""Read an experiment file: hyper-parameters, settings, and the arms to compare with.

Where a user's words become values: errors name the file, the dotted path, and the nearest name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ratchet.errors import ParameterError, RatchetError, nearest
from ratchet.experiment_files.earlier_runs import with_base_run
from ratchet.experiment_files.loaded_agents import with_loaded_agents
from ratchet.parameters.changes import merge_changes
from ratchet.parameters.converters import upgraded
from ratchet.parameters.discovery import load_files, load_plugins
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.reserved import refuse_unread_budget
from ratchet.parameters.settings import ExperimentSettings
from ratchet.parameters.torchrl_files import name_choices
from ratchet.parameters.yaml_files import parse_yaml, read_mapping
from ratchet.protocols.registry import check_protocol_parameters

MAIN_ARM = "main"
_OWN_KEYS = ("settings", "arms")


@dataclass(frozen=True)
class ExperimentFile:
    """What an experiment file says, overrides included.

    Attributes
    ----------
    settings
        What must not change a result. ``base_dir`` is the file's folder.
    arms
        Further experiments of the same run by name, the main one not among them.
    arm_changes
        What each arm changes, as the file has it.
    """

    name: str
    path: Path
    hyper_params: HyperParameters
    settings: ExperimentSettings
    arms: dict[str, HyperParameters] = field(default_factory=dict)
    arm_changes: dict[str, dict[str, Any]] = field(default_factory=dict)


def load_experiment(path: str | Path, overrides: Iterable[str] = ()) -> ExperimentFile:
    """Read an experiment file and put overrides on top.

    It is YAML: hyper-parameters at the top level, ``settings:`` and ``arms:`` beside them. An arm
    holds changes to the main experiment, nested or dotted. Overrides are ``a.b=value``, the value
    in YAML; ``settings.…`` and ``arms.NAME.…`` too.

    Raises
    ------
    ParameterError
        For a missing file, bad YAML (file, line), an unknown key (nearest name) or a wrong
        value (dotted path, value, what was expected).
    """
    file = Path(path).expanduser()
    if not file.is_file():
        raise ParameterError(_missing_file(file))
    content = _upgraded(expand_paths(read_mapping(file), str(file)), file)
    data = HyperParameters.gather(content, _OWN_KEYS)
    changes = expand_paths(name_choices(data, parse_overrides(overrides)), "overrides")
    data = merge_changes(data, _upgraded(changes, file))
    data = HyperParameters.gather(data, _OWN_KEYS)
    settings = _mapping(data.pop("settings", None), "settings", file)
    arms = _mapping(data.pop("arms", None), "arms", file)
    base_dir = Path(settings.setdefault("base_dir", str(file.resolve().parent)))
    try:
        data = with_base_run(data, settings.get("runs", ExperimentSettings().runs))
        load_files(data, base_dir, HyperParameters.known_keys())
        _check_keys(data, file)
        experiment = ExperimentFile(
            name=file.stem,
            path=file.resolve(),
            hyper_params=HyperParameters.from_dict(data, base_dir),
            settings=ExperimentSettings.from_dict(settings),
            arms={
                str(name): _read_arm(str(name), data, change, base_dir)
                for name, change in arms.items()
            },
            arm_changes={str(name): dict(change) for name, change in arms.items()},
        )
        all_params = (experiment.hyper_params, *experiment.arms.values())
        refuse_unread_budget(experiment.settings, all_params)
        for params in all_params:
            check_protocol_parameters(params, base_dir=base_dir)
        return _with_loaded_agents(experiment)
    except RatchetError as error:
        raise type(error)(f"{file}:\n{error}") from error


def _upgraded(data: Mapping[str, Any], file: Path) -> dict[str, Any]:
    try:
        return upgraded(data, str(file))
    except ParameterError as error:
        raise ParameterError(f"{file}: {error}") from error


def _with_loaded_agents(experiment: ExperimentFile) -> ExperimentFile:
    settings = experiment.settings
    arms = {name: with_loaded_agents(arm, settings) for name, arm in experiment.arms.items()}
    main = with_loaded_agents(experiment.hyper_params, settings)
    return replace(experiment, hyper_params=main, arms=arms)


def parse_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """Turn ``["rl.num_iterations=20"]`` into ``{"rl.num_iterations": 20}``.

    Raises
    ------
    ParameterError
        For an override without ``=`` or a name, or whose value is bad YAML.
    """
    result: dict[str, Any] = {}
    for override in overrides:
        name, equals, value = override.partition("=")
        name = name.strip()
        if not equals or not all(name.split(".")):
            raise ParameterError(
                f"override {override!r}: expected a.b=value, e.g. rl.num_iterations=20."
            )
        result[name] = parse_yaml(value, f"override {override!r}")
    return result


def expand_paths(data: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Nest dotted keys: ``{"rl.lr": 1, "rl": {"gamma": 1}}`` → ``{"rl": {"lr": 1, "gamma": 1}}``.

    Raises
    ------
    ParameterError
        If a key is no text.
    """
    result: dict[str, Any] = {}
    for key, value in data.items():
        if not isinstance(key, str):
            raise ParameterError(f"{source}: the key {key!r} is no text. Put it in quotes.")
        nested = expand_paths(value, source) if isinstance(value, Mapping) else value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        result = merge_changes(result, nested)
    return result


def _read_arm(
    name: str, main: Mapping[str, Any], changes: object, base_dir: Path
) -> HyperParameters:
    if name == MAIN_ARM:
        raise ParameterError(
            f"arms.{name}: this name is the main experiment's. Choose another name."
        )
    if not isinstance(changes, Mapping):
        raise ParameterError(f"arms.{name}: got {changes!r}, expected changes, e.g. rl.lr: 0.1.")
    try:
        data = merge_changes(main, upgraded(changes, f"arms.{name}"))
        return HyperParameters.from_dict(data, base_dir)
    except ParameterError as error:
        lines = str(error).splitlines()
        raise ParameterError("\n".join(f"arms.{name}.{line}" for line in lines)) from error


def _mapping(value: object, name: str, file: Path) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ParameterError(f"{file}: {name}: got {value!r}, expected a mapping.")
    return dict(value)


def _check_keys(data: Mapping[str, Any], file: Path) -> None:
    """Refuse an unknown key with the nearest name, ``settings`` and ``arms`` included."""
    load_plugins()
    known = [*HyperParameters.known_keys(), *_OWN_KEYS]
    for name, value in data.items():
        if name not in known:
            raise ParameterError(
                f"{file}: {name}: unknown parameter (value {value!r}).{nearest(name, known)}"
            )


def _missing_file(file: Path) -> str:
    """Name the file that was probably meant: one beside it or in ``experiments/``."""
    folders = dict.fromkeys([file.parent, Path("experiments")])
    found = [yaml for folder in folders for yaml in sorted(folder.glob("*.y*ml"))]
    stems = {yaml.stem: yaml for yaml in found}
    close = difflib.get_close_matches(file.stem, stems, n=1, cutoff=0.5)
    if close:
        return f"{file}: no such file. Did you mean {stems[close[0]]}?"
    known = ", ".join(str(yaml) for yaml in found)
    return f"{file}: no such file." + (f" There are: {known}." if known else "")
