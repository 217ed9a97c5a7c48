"""Algorithm and environment of a TorchRL configuration, and the run's names for them.

With a list of ``defaults``, ``trainer`` and ``dataset`` follow the configuration, after all
changes. Without one, the configuration must agree with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ratchet.errors import ParameterError, nearest, shown
from ratchet.parameters.trainers import NOT_RUN, TORCHRL_ALGORITHMS, TORCHRL_TRAINERS

_SECTION, _TRAINER, _DATASET, _LOSS = "torchrl", "trainer", "dataset", "loss"
_ANY_LOSS = "offline_to_online"
"""The trainer that learns with the loss of any algorithm with a replay buffer."""
_CALLED_OTHERWISE = {"vmas": "scenario", "pettingzoo": "task", "smacv2": "map_name"}
"""Option of an environment → the key of its name, if not ``env_name``."""


def library_defaults(data: Mapping[str, Any]) -> list[Any] | None:
    """Return the list of defaults of an experiment's configuration of the library, if it has one.

    ``data`` are the experiment's, with that configuration in its section.
    """
    defaults = _config(data).get("defaults")
    return defaults if isinstance(defaults, list) else None


def package_of(entry: object) -> str:
    """Return the package of an entry in a list of defaults, or of an override."""
    name = next(iter(entry), "") if isinstance(entry, Mapping) else entry
    words = str(name).rpartition("@")[2].split()
    return words[-1] if words else ""


def forget_names(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Remove the names that follow from the configuration, unless changes set them."""
    if library_defaults(data) is None:
        return dict(data)
    changed_names = {name for name in (_TRAINER, _DATASET) if isinstance(changes.get(name), str)}
    if not any(_environments(_config(data))):  # the user chose the name
        changed_names.add(_DATASET)
    followers = {_TRAINER, _DATASET} - changed_names
    return {n: value for n, value in data.items() if n not in followers or _is_own(n, value)}


def with_names(data: Mapping[str, Any]) -> dict[str, Any]:
    """Set the names of algorithm and environment from an experiment's configuration."""
    if _is_own(_TRAINER, data.get(_TRAINER)):
        return dict(data)
    defaults = library_defaults(data)
    chosen = _algorithm(data, defaults)
    if chosen is not None:
        _refuse_other_trainer(data, chosen, follows=defaults is not None)
        data = {**data, _TRAINER: f"torchrl_{chosen}"}
    _refuse_other_loss(data, defaults)
    paths = dict(_environments(_config(data)))
    names = list(dict.fromkeys(paths.values()))
    if defaults is None or (_DATASET in data and not names):
        _refuse_other_environment(data, paths, follows=False)
        return dict(data)
    if len(names) != 1:
        raise ParameterError(
            f"training_env: the names of environments are {names}, expected one environment. One"
            f" without a name is given it as `{_DATASET}: …` next to the groups."
        )
    _refuse_other_environment(data, paths, follows=True)
    return {**data, _DATASET: names[0]}


def _is_own(name: str, value: object) -> bool:
    """Whether a trainer is none of the library's algorithms, but e.g. one from a file."""
    return name == _TRAINER and value is not None and value not in TORCHRL_TRAINERS


def _config(data: Mapping[str, Any]) -> Mapping[str, Any]:
    return _part(_part(data, _SECTION), "config")


def _part(data: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return the mapping under a name; an empty one for other values, refused elsewhere."""
    part = data.get(name)
    return part if isinstance(part, Mapping) else {}


def _refuse_other_loss(data: Mapping[str, Any], defaults: list[Any] | None) -> None:
    """Raise ParameterError if the loss is of a different algorithm from the trainer's."""
    algorithm = str(data.get(_TRAINER)).removeprefix("torchrl_")
    loss = _chosen(data, defaults, _LOSS)
    known = set(TORCHRL_ALGORITHMS) - {_ANY_LOSS}
    if loss == algorithm or loss not in known or algorithm not in known:
        return
    raise ParameterError(
        f"{_LOSS}: got {loss!r} with the trainer {algorithm!r}, expected {algorithm!r}: the run"
        " would be recorded as an algorithm that it does not learn with. Write"
        f" `{_TRAINER}={loss} {_LOSS}={loss}` or `{_TRAINER}={algorithm} {_LOSS}={algorithm}`, and"
        " the algorithm's other requirements."
    )


def _chosen(data: Mapping[str, Any], defaults: list[Any] | None, package: str) -> object:
    """Return the option of a package: that of the choices, else that of the list of defaults."""
    choices = _part(_part(data, _SECTION), "choices")
    chosen = next((o for name, o in choices.items() if package_of(name) == package), None)
    return _option(defaults, package) if chosen is None and defaults is not None else chosen


def _algorithm(data: Mapping[str, Any], defaults: list[Any] | None) -> str | None:
    """Return the algorithm that is chosen; None if it is only named."""
    chosen = _chosen(data, defaults, _TRAINER)
    if chosen is None and defaults is None:
        return None
    if chosen not in TORCHRL_ALGORITHMS:
        refuse_not_run(f"torchrl_{chosen}")
        raise ParameterError(
            f"defaults: the trainer is {shown(chosen)}, expected an entry such as"
            f" `trainer@trainer: ppo`.{nearest(str(chosen), TORCHRL_ALGORITHMS)}"
        )
    return str(chosen)


def refuse_not_run(trainer: str) -> None:
    """Refuse a trainer named like a library algorithm that Ratchet does not run."""
    if trainer in NOT_RUN:
        raise ParameterError(
            f"{_TRAINER}: got {shown(trainer)}, expected one of {', '.join(TORCHRL_TRAINERS)}."
            f" {NOT_RUN[trainer]}"
        )


def _refuse_other_trainer(data: Mapping[str, Any], chosen: str, *, follows: bool) -> None:
    named = data.get(_TRAINER, f"torchrl_{chosen}")
    if named == f"torchrl_{chosen}":
        return
    algorithm = str(named).removeprefix("torchrl_")
    advice = (
        f"The name follows the configuration: write `{_TRAINER}={algorithm} loss={algorithm}` and"
        " the algorithm's other requirements, or another file."
        if follows
        else f"Write `{_TRAINER}=torchrl_{chosen}`, and no option for {_TRAINER}."
    )
    raise ParameterError(
        f"{_TRAINER}: got {shown(named)}, but the configuration of the library chooses"
        f" {shown(chosen)} for its trainer. {advice}"
    )


def _refuse_other_environment(
    data: Mapping[str, Any], paths: Mapping[str, str], *, follows: bool
) -> None:
    named = data.get(_DATASET)
    for path, name in paths.items():
        if named is None or name == named:
            continue
        advice = (
            f"The name follows the configuration: write `{path}={named}`."
            if follows
            else f"Write `{_DATASET}={name}` alone, which goes into it."
        )
        raise ParameterError(
            f"{_DATASET}: got {shown(named)}, but {path} of the library's configuration is"
            f" {shown(name)}. {advice}"
        )


def _option(defaults: list[Any], package: str) -> object:
    """Return the option that a list of defaults takes for a package."""
    for entry in defaults:
        for name, option in entry.items() if isinstance(entry, Mapping) else ():
            if package_of(name) == package:
                return option
    return None


def _environments(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the path and the name of each environment that a configuration names."""
    named = [path for path, _ in _values_of(config, "env_name")]
    for entry in config.get("defaults") or ():
        for option in entry.values() if isinstance(entry, Mapping) else ():
            if isinstance(option, str) and option in _CALLED_OTHERWISE:
                named.append(f"{package_of(entry)}.{_CALLED_OTHERWISE[option]}")
    for path in named:
        value = resolved(config, path)
        if value is not None:
            yield path, str(value)


def _values_of(tree: object, name: str, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            inner_path = f"{path}.{key}" if path else str(key)
            if key == name:
                yield inner_path, value
            else:
                yield from _values_of(value, name, inner_path)


def resolved(config: Mapping[str, Any], path: str) -> object:
    """Return the value at a path, references followed; None if only composing gives one."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        value: object = OmegaConf.select(OmegaConf.create(dict(config)), path)
    except OmegaConfBaseException:
        return None
    return value
