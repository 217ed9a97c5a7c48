"""Read an experiment file: hyper-parameters, settings, and the arms to compare with.

Errors name the file, the dotted path, and the nearest name.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from pydantic import ValidationError

from ratchet.errors import ParameterError, RatchetError, shown
from ratchet.experiment_files.base_run import with_base_run, with_loaded_agents
from ratchet.parameters.agents import DEFAULT_AGENT
from ratchet.parameters.compatibility.converters import upgraded
from ratchet.parameters.compatibility.hydra import plain_overrides
from ratchet.parameters.compatibility.other_systems import refuse_other_systems
from ratchet.parameters.compatibility.torchrl_files import name_choices
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.reading.deep_merge import expand_paths, merge_changes, merge_nested
from ratchet.parameters.reading.discovery import (
    agent_model,
    load_files,
    load_plugins,
    missing_files,
    start_from_base,
)
from ratchet.parameters.reading.messages import (
    describe_validation_error,
    raise_together,
    shorten_message,
    suggest_at_top,
)
from ratchet.parameters.reading.yaml_files import header_comment, parse_yaml, read_mapping
from ratchet.parameters.settings import ExperimentSettings, is_possible_path
from ratchet.protocols.checks import unknown_agents
from ratchet.protocols.registry import PROTOCOLS, check_protocol_parameters, has_usual_agents

if TYPE_CHECKING:
    from ratchet.parameters.sweeps import SweepSpec
    from ratchet.tracking.preregistration import Preregistration

MAIN_ARM = "main"
FILE_KEYS = ("settings", "arms", "sweep", "preregistered")
_Read: TypeAlias = Callable[[Mapping[str, Any]], HyperParameters]


@dataclass(frozen=True)
class ExperimentFile:
    """Content of an experiment file, overrides included.

    Attributes
    ----------
    settings
        Settings, which do not affect results. ``base_dir`` is the file's folder.
    arms
        Further experiments of the same run by name, without the main one.
    arm_changes
        The changes of each arm as in the file.
    sweep
        Specification of the members for `ratchet sweep`, if given.
    preregistered
        What the study compares, recorded when `ratchet sweep` starts, if given.
    named
        The nested values that the file and overrides name, by arm; others are defaults.
    """

    name: str
    path: Path
    hyper_params: HyperParameters
    settings: ExperimentSettings
    arms: dict[str, HyperParameters] = field(default_factory=dict)
    arm_changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    sweep: SweepSpec | None = None
    preregistered: Preregistration | None = None
    named: dict[str, Mapping[str, Any]] = field(default_factory=dict)


class Names(Protocol):
    """Valid names of a kind, such as a registry."""

    def check(self, name: str) -> None:
        """Raise UnknownNameError if the name is unknown."""
        ...


def load_experiment(
    path: str | Path, overrides: Iterable[str] = (), names: Mapping[str, Names] | None = None
) -> ExperimentFile:
    """Read an experiment file and apply overrides.

    It is YAML with hyper-parameters, ``settings:``, ``arms:``, ``sweep:`` and ``preregistered:`` at
    the top level. An arm contains changes to the main experiment, nested or dotted. Overrides are
    ``a.b=value``, the value in YAML; also in these sections, such as ``settings.…`` and
    ``arms.NAME.…``; ``+a.b=value`` and ``~a.b`` as in Hydra. ``names`` maps top-level keys to their
    valid names in higher layers; protocols are known here.

    Raises
    ------
    ParameterError
        For a missing file, bad YAML (file, line), an unknown key (nearest name) or a wrong value
        (dotted path, value, expectation), with a line for each error.
    """
    file = Path(path).expanduser()
    if not os.path.isfile(file):  # also false for an invalid path
        raise ParameterError(_missing_file(file))
    try:
        return _load(file, overrides, names or {})
    except RatchetError as error:
        raise type(error)(shorten_message(str(error))) from error


def _load(file: Path, overrides: Iterable[str], names: Mapping[str, Names]) -> ExperimentFile:
    mapping = read_mapping(file)
    refuse_other_systems(mapping, file)
    content = _upgraded(expand_paths(mapping, str(file)), file)
    data = HyperParameters.gather(content, FILE_KEYS)
    data, plain = plain_overrides(data, overrides)
    changes = expand_paths(name_choices(data, parse_overrides(plain)), "overrides")
    data = merge_changes(data, _upgraded(changes, file))
    data = HyperParameters.gather(data, FILE_KEYS)
    settings = _mapping(data.pop("settings", None), "settings", file)
    settings.setdefault("description", header_comment(file))
    arms = _mapping(data.pop("arms", None), "arms", file)
    sweep = _mapping(data.pop("sweep", None), "sweep", file)
    preregistered = _mapping(data.pop("preregistered", None), "preregistered", file)
    base_dir = Path(_text_setting(settings, "base_dir", str(file.resolve().parent)))
    runs = _text_setting(settings, "runs", ExperimentSettings().runs)
    named = named_values(data, arms)
    try:
        data, arms, sweep = (start_from_base(part, base_dir) for part in (data, arms, sweep))
        data = with_base_run(data, runs)
        load_files({**data, "arms": arms}, base_dir)
        read = partial(_read_parameters, base_dir=base_dir, names=names)
        chosen, all_params = _read_all(data, settings, arms, read, base_dir)
        all_params = {n: with_loaded_agents(params, chosen) for n, params in all_params.items()}
        return ExperimentFile(
            name=file.stem,
            path=file.resolve(),
            hyper_params=all_params.pop(MAIN_ARM),
            settings=chosen,
            arms=all_params,
            arm_changes={str(name): dict(change) for name, change in arms.items()},
            sweep=_read_sweep(sweep, chosen.base_dir),
            preregistered=read_preregistration(preregistered) if preregistered else None,
            named=named,
        )
    except RatchetError as error:
        raise type(error)(f"{file}:\n{error}") from error


def _read_all(
    data: Mapping[str, Any],
    settings: dict[str, Any],
    arms: Mapping[str, Any],
    read: _Read,
    base_dir: Path,
) -> tuple[ExperimentSettings, dict[str, HyperParameters]]:
    """Read settings and all arms, the main one first; raise all errors as one."""
    unknown = _unknown_keys(data, base_dir)
    errors: list[RatchetError] = list(unknown.values())
    known = {name: value for name, value in data.items() if name not in unknown}
    hyper_params_by_arm: dict[str, HyperParameters] = {}
    try:
        hyper_params_by_arm[MAIN_ARM] = read(known)
    except RatchetError as error:
        errors.append(error)
    for name, change in arms.items():
        try:
            hyper_params_by_arm[str(name)] = _read_arm(str(name), known, change, read)
        except RatchetError as error:
            errors += _only_its_own(str(name), error, errors)
    try:
        chosen = ExperimentSettings.from_dict(settings)
        refuse_unread_budget(chosen, hyper_params_by_arm.values())
    except RatchetError as error:
        errors.append(error)
    if errors:  # otherwise the protocol's check reports it with its agents
        reported = {line.partition(": ")[0] for error in errors for line in str(error).splitlines()}
        wrong = _unknown_agents(known, arms)
        errors += [error for error in wrong if str(error).partition(": ")[0] not in reported]
    raise_together(errors)
    return chosen, hyper_params_by_arm


def _unknown_agents(main: Mapping[str, Any], arms: Mapping[str, Any]) -> Iterator[RatchetError]:
    """Yield an error for each agent with a wrong name in one of Ratchet's protocols."""
    changes = {f"arms.{name}.": arm for name, arm in arms.items() if isinstance(arm, Mapping)}
    for where, data in {"": main, **changes}.items():
        agents = data.get("agents")
        if isinstance(agents, Mapping) and has_usual_agents(_protocol_name({**main, **data})):
            yield from (ParameterError(f"{where}{error}") for error in unknown_agents(agents))


def _protocol_name(data: Mapping[str, Any]) -> object:
    """Return the chosen protocol or the scenario's default; None for an unknown scenario."""
    try:
        model = agent_model(str(data.get("scenario")))
        return data.get("interaction_protocol") or getattr(model, "default_protocol", "nip")
    except RatchetError:
        return None


def _only_its_own(
    arm: str, error: RatchetError, others: Iterable[RatchetError]
) -> list[RatchetError]:
    """Remove an arm's errors that the main experiment has too."""
    reported_lines = {line for other in others for line in str(other).splitlines()}
    lines = [line for line in str(error).splitlines() if line not in reported_lines]
    arm_lines = [line for line in lines if line.removeprefix(f"arms.{arm}.") not in reported_lines]
    return [type(error)("\n".join(arm_lines))] if arm_lines else []


def _read_parameters(
    data: Mapping[str, Any], base_dir: Path, names: Mapping[str, Names]
) -> HyperParameters:
    errors: list[RatchetError] = []
    for key, known in {"interaction_protocol": PROTOCOLS, **names}.items():
        try:
            if isinstance(data.get(key), str):
                known.check(data[key])
        except RatchetError as error:
            errors.append(error)
    try:
        params = HyperParameters.from_dict(data, base_dir)
        check_protocol_parameters(params, base_dir=base_dir)
    except RatchetError as error:
        raise_together([*errors, error])
    raise_together(errors)
    return params


def named_values(
    main: Mapping[str, Any], arms: Mapping[str, object]
) -> dict[str, Mapping[str, Any]]:
    """Return the values that nested parameters and the changes of arms name, by arm."""
    changes = {str(name): arm for name, arm in arms.items() if isinstance(arm, Mapping)}
    return {
        MAIN_ARM: main,
        **{name: merge_nested(main, expand_paths(arm, name)) for name, arm in changes.items()},
    }


def _upgraded(data: Mapping[str, Any], file: Path) -> dict[str, Any]:
    try:
        return upgraded(data, str(file))
    except ParameterError as error:
        raise ParameterError(f"{file}: {error}") from error


def parse_overrides(overrides: Iterable[str]) -> dict[str, Any]:
    """Turn ``["rl.num_iterations=20"]`` into ``{"rl.num_iterations": 20}``.

    Raises ParameterError for an override without ``=`` or a name, or whose value is bad YAML.
    """
    result: dict[str, Any] = {}
    for override in overrides:
        name, equals, value = override.partition("=")
        name = name.strip()
        if not equals or not all(name.split(".")) or not name.isprintable():
            raise ParameterError(
                f"override {shown(override)}: expected a.b=value, e.g. rl.num_iterations=20."
            )
        result[name] = parse_yaml(value, f"override {shown(override)}")
    return result


def _read_arm(name: str, main: Mapping[str, Any], changes: object, read: _Read) -> HyperParameters:
    if name == MAIN_ARM:
        raise ParameterError(
            f"arms.{name}: this name is the main experiment's. Choose another name."
        )
    if not isinstance(changes, Mapping):
        raise ParameterError(
            f"arms.{name}: got {shown(changes)}, expected changes, e.g. rl.lr: 0.1."
        )
    try:
        data = merge_changes(main, upgraded(changes, f"arms.{name}"))
        return read(data)
    except RatchetError as error:
        lines = str(error).splitlines()
        raise type(error)("\n".join(f"arms.{name}.{line}" for line in lines)) from error


def _read_sweep(section: Mapping[str, Any], base_dir: str | Path | None) -> SweepSpec | None:
    if not section:
        return None
    from ratchet.parameters.sweeps import read_sweep_spec

    return read_sweep_spec(section, base_dir)


def read_preregistration(section: Mapping[str, Any]) -> Preregistration:
    """Read a preregistration from plain data.

    Seeds are a list or a range such as ``0..4``.
    """
    from ratchet.parameters.sweeps import expand_values
    from ratchet.tracking.preregistration import SECTION, Preregistration

    content = dict(section)
    seeds = content.get("seeds")
    if isinstance(seeds, str | list):
        listed = [seeds] if isinstance(seeds, str) else seeds
        content["seeds"] = expand_values(f"{SECTION}.seeds", listed)
    try:
        return Preregistration.model_validate(content)
    except ValidationError as error:
        text = describe_validation_error(error, prefix=SECTION, model=Preregistration)
        raise ParameterError(text) from error


def _mapping(value: object, name: str, file: Path) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ParameterError(f"{file}: {name}: got {shown(value)}, expected a mapping.")
    return dict(value)


def _text_setting(settings: dict[str, Any], name: str, default: str) -> str:
    """Return a setting that is read before all settings are validated; set its default."""
    if settings.get(name) is None:
        settings[name] = default
    value = settings[name]
    if not isinstance(value, str) or not is_possible_path(value):
        raise ParameterError(f"settings.{name}: got {shown(value)}, expected a folder.")
    return value


def _unknown_keys(data: Mapping[str, Any], base_dir: Path) -> dict[str, RatchetError]:
    """Return an error for each invalid top-level key of a file."""
    load_plugins()
    missing = ", ".join(str(base_dir / path) for path in missing_files(data, base_dir))
    unless = f" It may be registered by a missing file: {missing}." * bool(missing)
    known = [*HyperParameters.known_keys(), *FILE_KEYS]
    others = {"settings": ExperimentSettings}
    return {
        name: ParameterError(
            f"{name}: unknown parameter (value {shown(value)})."
            f"{suggest_at_top(name, known, others)}{unless}"
        )
        for name, value in data.items()
        if name not in known
    }


def _missing_file(file: Path) -> str:
    """Describe a missing file, with near names in its folder or in ``experiments/``."""
    is_folder = os.path.isdir(file)
    what = "is a folder, expected a file" if is_folder else "no such file"
    folders = dict.fromkeys([file if is_folder else file.parent, Path("experiments")])
    yaml_files = [yaml for folder in folders for yaml in sorted(folder.glob("*.y*ml"))]
    stems = {yaml.stem: yaml for yaml in reversed(yaml_files)}
    close = difflib.get_close_matches(file.stem, stems, n=3, cutoff=0.6)
    close += sorted(stem for stem in stems if file.stem in stem and stem not in close)
    if close:
        meant = " or ".join(str(stems[stem]) for stem in close)
        return f"{file}: {what}. Did you mean {meant}?"
    known = ", ".join(str(yaml) for yaml in yaml_files)
    return f"{file}: {what}." + (f" Available: {known}." if known else "")


def refuse_unread_budget(
    settings: ExperimentSettings, all_hyper_params: Iterable[HyperParameters]
) -> None:
    """Refuse a budget where no agent can spend money."""
    if settings.budget is None or any(
        each.agents[DEFAULT_AGENT].is_text for each in all_hyper_params
    ):
        return
    raise ParameterError(
        f"settings.budget: got {settings.budget!r}, but no agent of this experiment calls a"
        " service that costs money. Remove it."
    )
