"""Catalogue of environments: from an id to dynamics on tensors, or to simulators.

An id is that of a gymnasium environment, the module of a PettingZoo environment, the name of a
registered or installed class, ``open_spiel/GAME``, or ``path/to/file.py:ClassName`` with a class of
any of these kinds.
Ids that start with one of ``SUITES`` are TorchRL's: ``dm_control/cartpole-swingup``,
``vmas/navigation``.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from ratchet.errors import ParameterError, UnknownNameError, nearest, shown
from ratchet.games import OPEN_SPIEL
from ratchet.games.loading import game_class, make_game
from ratchet.lazy import is_installed, require_packages
from ratchet.parameters.trainers import TORCHRL_TRAINERS
from ratchet.plugins import is_class_spec, load_class
from ratchet.registry import is_file
from ratchet.scenarios.gymnasium.dynamics import Dynamics
from ratchet.scenarios.gymnasium.registry import ENVIRONMENTS, TIME_LIMITS
from ratchet.scenarios.gymnasium.registry import register_dynamics as register_dynamics
from ratchet.scenarios.gymnasium.spaces import AgentSpace, AgentSpaces, DiscreteActions

if TYPE_CHECKING:
    import gymnasium

    from ratchet.parameters.base import Reference
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.gymnasium.parameters import GymnasiumParameters
    from ratchet.scenarios.gymnasium.simulators import Simulator

_PATH = "gymnasium.wrappers"
_RUNNING_MEANS = ("NormalizeObservation", "NormalizeReward")
"""Their statistics are in the simulator, which no stage stores."""
_Base = TypeVar("_Base")

SUITES = ("dm_control", "vmas")
"""Packages whose environments only TorchRL's trainers play: the first part of their ids."""
_SIMULATORS = {
    "gymnasium.envs.mujoco": ("mujoco", "imageio"),
    "gymnasium.envs.box2d": ("Box2D",),
}
"""Module of gymnasium's environments → the packages that it imports."""
PARALLEL = "parallel_env"
AGENT_CYCLE = "env"
"""Names of the constructors in PettingZoo's modules: all agents act at once, or in turn."""


def wrapped(
    environment: gymnasium.Env[Any, Any],
    wrappers: Iterable[Reference],
    base_dir: Path | str | None = None,
) -> gymnasium.Env[Any, Any]:
    """Apply wrappers to an environment, the first one innermost."""
    import gymnasium

    for reference in wrappers:
        wrapper = class_by_name(
            reference.name, gymnasium.wrappers, gymnasium.Wrapper, _PATH, base_dir
        )
        if wrapper.__name__ in _RUNNING_MEANS and wrapper.__module__.startswith("gymnasium."):
            raise ParameterError(
                f"{_PATH}: got {reference.name!r}, whose running means no stage keeps, so that a"
                " resumed run would differ. Take rl.normalize_observations, or for TorchRL's"
                " trainers torchrl.transforms: [VecNormV2]."
            )
        with checked_arguments(reference.name, reference.given, _PATH):
            environment = wrapper(environment, **reference.given)
    return environment


def refuse_wrappers(wrappers: Iterable[Reference], name: str) -> None:
    """Refuse wrappers of an environment that is not a gymnasium environment."""
    names = [reference.name for reference in wrappers]
    if names:
        raise ParameterError(
            f"{_PATH}: got {names} for {name!r}, expected none, as it is not a gymnasium"
            " environment. TorchRL's trainers have torchrl.transforms for any environment."
        )


def class_by_name(
    name: str, home: ModuleType, base: type[_Base], path: str, base_dir: Path | str | None = None
) -> type[_Base]:
    """Return a class of a library's module, or that of ``path/to/file.py:ClassName``.

    ``path`` is that of the parameter that names it.
    """
    if is_file(name):
        return load_class(name, base_dir, base=base)
    candidate = getattr(home, name, None)
    if not (isinstance(candidate, type) and issubclass(candidate, base)):
        known = [n for n, v in inspect.getmembers(home, inspect.isclass) if issubclass(v, base)]
        raise UnknownNameError(
            f"{path}: {home.__name__} has no class {name!r}.{nearest(name, known)} Give a custom"
            " class as 'path/to/file.py:ClassName'."
        )
    return candidate


def classes_of_files(
    references: Iterable[Reference], base_dir: Path | str | None = None
) -> tuple[type, ...]:
    """Return the custom classes in users' files, for code fingerprints."""
    return tuple(load_class(r.name, base_dir) for r in references if is_class_spec(r.name))


@contextmanager
def checked_arguments(
    name: str, kwargs: Mapping[str, Any], path: str = "gymnasium.environment_kwargs"
) -> Iterator[None]:
    """Add the arguments of a constructor to errors raised within the context."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise ParameterError(
            f"{path}: {name} got {sorted(kwargs)}: {error}. Expected arguments of its constructor."
        ) from error


@dataclass(frozen=True)
class BatchedEnvSpec:
    """An environment on tensors; its class ``source`` is in code fingerprints."""

    make: Callable[[], Dynamics]
    source: type
    max_episode_steps: int | None

    def spaces(self) -> AgentSpaces:
        """Return the agents' spaces."""
        return AgentSpaces(self.make().agents)


@dataclass(frozen=True)
class SimulatedEnvSpec:
    """An environment that is simulated one episode at a time.

    ``source`` is a custom class, for code fingerprints; None for a library's. ``takes_turns``: not
    all agents act in each step.
    """

    make: Callable[[], Simulator]
    source: type | None = None
    takes_turns: bool = False
    renders: bool = True

    def spaces(self) -> AgentSpaces:
        """Return the agents' spaces."""
        simulator = self.make()
        try:
            return simulator.spaces
        finally:
            simulator.close()


class LibraryGame(SimulatedEnvSpec):
    """A TorchRL environment, for its trainers; for others if it can be simulated.

    If not, ``make`` raises and, before a run, :meth:`check`.
    """

    def spaces(self) -> AgentSpaces:
        """Return its agents' spaces, or those of one agent if they are unknown."""
        try:
            return super().spaces()
        except ParameterError:
            return AgentSpaces({"agent": AgentSpace(1, DiscreteActions((1,)))})

    def check(self) -> None:
        """Refuse what cannot be simulated: ParameterError with the reason."""
        self.make().close()


Game = BatchedEnvSpec | SimulatedEnvSpec


def find_game(hyper_params: HyperParameters, base_dir: Path | None = None) -> Game:
    """Return the environment whose id is ``dataset``, configured by the section ``gymnasium``.

    The path of a user's file starts from ``base_dir``, the working folder if not given.
    """
    name, section = hyper_params.dataset, hyper_params.gymnasium
    if suite_of(name) is not None:
        require_packages(_packages_of(name), f"dataset: {name!r}")
        refuse_wrappers(section.wrappers, name)
        return LibraryGame(lambda: _refuse_to_simulate(name))
    if game_class(name, base_dir) is not None:
        simulates = _wants_simulator(hyper_params)
        return _from_match_game(name, section, base_dir, simulates=simulates)
    if is_file(name) or name in ENVIRONMENTS.names():
        environment_class = ENVIRONMENTS.find(name, base_dir)
        stands_in = issubclass(environment_class, Dynamics) and not is_file(name)
        if not (stands_in and _wants_simulator(hyper_params)):
            return _from_class(environment_class, section, TIME_LIMITS.get(name), base_dir)
    elif section.implementation == "batched":
        raise ParameterError(
            "gymnasium.implementation: got 'batched', but there are no dynamics on tensors for"
            f" {name!r}, only for {ENVIRONMENTS.names()}. Set it to 'auto'."
        )
    if _is_known(name) or "defaults" not in hyper_params.torchrl.config:
        return _from_library(name, section, base_dir)
    return LibraryGame(lambda: _refuse_to_simulate(name))


def _wants_simulator(hyper_params: HyperParameters) -> bool:
    """Return whether dynamics on tensors are passed over: nothing wraps them.

    TorchRL's trainers don't know them either.
    """
    section = hyper_params.gymnasium
    if section.implementation == "simulated" or hyper_params.trainer_name in TORCHRL_TRAINERS:
        return True
    return bool(section.wrappers) and section.implementation == "auto"


def _refuse_to_simulate(name: str) -> Simulator:
    raise ParameterError(
        f"dataset: {name!r} is a TorchRL environment, which only its trainers support;"
        " expected one of them, e.g. `trainer: torchrl_ppo`."
    )


def _is_known(name: str) -> bool:
    """Return whether there is an environment of gymnasium's or PettingZoo's of that name."""
    import gymnasium

    return ":" in name or name in gymnasium.registry or _pettingzoo_maker(name) is not None


def _from_class(
    environment_class: type, section: GymnasiumParameters, limit: int | None, base_dir: Path | None
) -> Game:
    """Return the spec of a class found by name or in a user's file."""
    if issubclass(environment_class, Dynamics):
        refuse_wrappers(section.wrappers, environment_class.__qualname__)
        return _batched(environment_class, section, limit or environment_class.max_episode_steps)
    import gymnasium
    import pettingzoo

    from ratchet.scenarios.gymnasium.simulators import GymnasiumSimulator, PettingZooSimulator

    kwargs, cut_off = section.environment_kwargs, section.max_episode_steps
    if issubclass(environment_class, gymnasium.Env):

        def make() -> Simulator:
            environment = wrapped(environment_class(**kwargs), section.wrappers, base_dir)
            return GymnasiumSimulator(environment, cut_off)

        return SimulatedEnvSpec(make, environment_class)
    refuse_wrappers(section.wrappers, environment_class.__qualname__)
    if issubclass(environment_class, pettingzoo.ParallelEnv):
        return SimulatedEnvSpec(
            lambda: PettingZooSimulator(environment_class(**kwargs), cut_off), environment_class
        )
    if issubclass(environment_class, pettingzoo.AECEnv):
        return _agent_cycle(environment_class.__qualname__, environment_class, section)
    if _is_torchrls(environment_class):

        def make() -> Simulator:
            from ratchet.scenarios.gymnasium.torchrl_simulator import TorchRlSimulator

            with checked_arguments(environment_class.__qualname__, kwargs):
                return TorchRlSimulator(environment_class(**kwargs), cut_off)

        return LibraryGame(make, environment_class)
    raise ParameterError(
        f"dataset: {environment_class.__qualname__!r} has the bases"
        f" {[b.__name__ for b in environment_class.__bases__]},"
        " expected a subclass of ratchet.scenarios.gymnasium.dynamics.Dynamics, gymnasium.Env,"
        " pettingzoo.ParallelEnv, pettingzoo.AECEnv, torchrl.envs.EnvBase or"
        " ratchet.games.match.Game."
    )


def _agent_cycle(
    name: str, make_environment: Callable[..., Any], section: GymnasiumParameters
) -> SimulatedEnvSpec:
    """Return the spec of a PettingZoo environment whose agents act in turn."""
    from ratchet.scenarios.gymnasium.agent_cycles import AgentCycleSimulator

    def make() -> Simulator:
        with checked_arguments(name, section.environment_kwargs):
            environment = make_environment(**section.environment_kwargs)
        return AgentCycleSimulator(environment, section.max_episode_steps)

    source = make_environment if isinstance(make_environment, type) else None
    return SimulatedEnvSpec(make, source, takes_turns=True)


def _from_match_game(
    name: str, section: GymnasiumParameters, base_dir: Path | None, *, simulates: bool
) -> Game:
    """Return the spec of a game of seats: of a small game of OpenSpiel, as a table."""
    require_packages(["gymnasium"], f"dataset: {name!r}")
    refuse_wrappers(section.wrappers, name)
    kwargs, limit = section.environment_kwargs, section.max_episode_steps
    if name.startswith(OPEN_SPIEL) and not simulates:
        from ratchet.scenarios.gymnasium.game_tables import GameTable, build_table

        table = build_table(name, kwargs)
        if table is not None:
            return BatchedEnvSpec(lambda: table, GameTable, limit)
    if section.implementation == "batched":
        raise ParameterError(
            f"gymnasium.implementation: got 'batched', but {name!r} is no game of OpenSpiel, or has"
            " too many nodes, simultaneous moves, or random numbers of its own. Set it to 'auto'."
        )
    from ratchet.scenarios.gymnasium.matches import MatchSimulator

    def make() -> Simulator:
        game = make_game(name, kwargs, base_dir, path="gymnasium.environment_kwargs")
        assert game is not None  # game_class has found it
        return MatchSimulator(game, limit)

    source = MatchSimulator if name.startswith(OPEN_SPIEL) else game_class(name, base_dir)
    return SimulatedEnvSpec(make, source, takes_turns=True, renders=False)


def _is_torchrls(environment_class: type) -> bool:
    """Return whether a class is a TorchRL environment; TorchRL is then already imported."""
    return any(
        base.__name__ == "EnvBase" and base.__module__.startswith("torchrl.")
        for base in environment_class.__mro__
    )


def _batched(
    dynamics: type[Dynamics], section: GymnasiumParameters, limit: int | None
) -> BatchedEnvSpec:
    def make() -> Dynamics:
        with checked_arguments(dynamics.__qualname__, section.environment_kwargs):
            return dynamics(**section.environment_kwargs)

    return BatchedEnvSpec(make, dynamics, section.max_episode_steps or limit)


def _from_library(
    name: str, section: GymnasiumParameters, base_dir: Path | None
) -> SimulatedEnvSpec:
    """Return the spec of a gymnasium or PettingZoo environment."""
    require_packages(_packages_of(name), f"dataset: {name!r}")
    import gymnasium

    from ratchet.scenarios.gymnasium.simulators import GymnasiumSimulator, PettingZooSimulator

    kwargs: dict[str, Any] = dict(section.environment_kwargs)
    limit = section.max_episode_steps
    maker = _pettingzoo_maker(name)
    if maker is not None:
        refuse_wrappers(section.wrappers, name)
        if maker == AGENT_CYCLE:
            return _agent_cycle(name, getattr(import_module(name), maker), section)
        parallel_env = getattr(import_module(name), maker)

        def make_parallel() -> Simulator:
            with checked_arguments(name, kwargs):
                return PettingZooSimulator(parallel_env(**kwargs), limit)

        return SimulatedEnvSpec(make_parallel)
    if ":" not in name and name not in gymnasium.registry:
        raise UnknownNameError(
            f"dataset: no environment {shown(name)}.{nearest(name, gymnasium.registry)} Expected an"
            " id of gymnasium, the module of an environment of PettingZoo such as"
            " 'mpe2.simple_spread_v3', 'open_spiel/GAME', 'dm_control/DOMAIN-TASK',"
            " 'vmas/SCENARIO', or 'path/to/file.py:ClassName'."
        )
    if limit is not None:
        kwargs["max_episode_steps"] = limit

    def make() -> Simulator:
        with checked_arguments(name, section.environment_kwargs):
            environment = gymnasium.make(name, **kwargs)
        return GymnasiumSimulator(wrapped(environment, section.wrappers, base_dir))

    return SimulatedEnvSpec(make)


def needed_packages(hyper_params: HyperParameters) -> list[str]:
    """Return the packages required by the environment ``dataset``; none for dynamics on tensors.

    Packages of users' files are unknown: importing the file reports missing ones.
    """
    name = hyper_params.dataset
    stands_in = name in ENVIRONMENTS.names() and not _wants_simulator(hyper_params)
    if is_file(name) or stands_in:
        return []
    return _packages_of(name)


def _packages_of(name: str) -> list[str]:
    """Return the packages of an environment; for PettingZoo, also that of its module."""
    suite = suite_of(name)
    if suite is not None:
        return ["gymnasium", suite]
    if name.startswith(OPEN_SPIEL):
        return ["gymnasium", "pyspiel"]
    if not _is_module(name):
        return ["gymnasium", *_packages_of_id(name)]
    return ["gymnasium", "pettingzoo", name.partition(".")[0]]


def _packages_of_id(name: str) -> list[str]:
    """Return the packages that gymnasium's module of an environment imports."""
    if not is_installed("gymnasium"):
        return []
    import gymnasium

    spec = gymnasium.registry.get(name)
    module = str(getattr(spec, "entry_point", ""))
    return [
        p for home, packages in _SIMULATORS.items() if module.startswith(home) for p in packages
    ]


def suite_of(name: str) -> str | None:
    """Return the package of an environment that only TorchRL's trainers play; None of others."""
    suite = name.partition("/")[0]
    return suite if suite in SUITES and "/" in name and not is_file(name) else None


def _is_module(name: str) -> bool:
    return "." in name and all(part.isidentifier() for part in name.split("."))


def parallel_module(name: str) -> str | None:
    """Return the module of a parallel PettingZoo environment; None for other names."""
    return name if _pettingzoo_maker(name) == PARALLEL else None


def _pettingzoo_maker(name: str) -> str | None:
    """Return the constructor in the module of a PettingZoo environment; None for other names."""
    if not _is_module(name):
        return None
    try:
        module_spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    if module_spec is None:
        return None
    module = import_module(name)
    return next((maker for maker in (PARALLEL, AGENT_CYCLE) if hasattr(module, maker)), None)
