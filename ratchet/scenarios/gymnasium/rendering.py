"""Simulators that render; of an environment on tensors it is gymnasium's of the same id."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.errors import ParameterError
from ratchet.scenarios.gymnasium.catalogue import LibraryGame, SimulatedGame, find_game

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.gymnasium.simulators import Simulator

_MODE = "render_mode"


def rendering_simulator(hyper_params: HyperParameters, base_dir: Path | None = None) -> Simulator:
    """Return a simulator of an experiment's environment that renders.

    Raises
    ------
    ParameterError
        If there is none.
    """
    game = find_game(hyper_params.replace({"gymnasium.implementation": "simulated"}), base_dir)
    if not isinstance(game, SimulatedGame) or isinstance(game, LibraryGame):
        raise _no_pictures(hyper_params, "is none of gymnasium's or PettingZoo's")
    if game.source is None or _takes_mode(game.source):
        kwargs = {**hyper_params.gymnasium.environment_kwargs, _MODE: "rgb_array"}
        changes: dict[str, Any] = {
            "gymnasium.implementation": "simulated",
            "gymnasium.environment_kwargs": kwargs,
        }
        game = find_game(hyper_params.replace(changes), base_dir)
    assert isinstance(game, SimulatedGame)  # as before
    return game.make()


def check_pictures(hyper_params: HyperParameters, base_dir: Path | None = None) -> None:
    """Refuse an environment that shows no pictures: ParameterError with the reason."""
    from gymnasium.error import DependencyNotInstalled

    simulator = rendering_simulator(hyper_params, base_dir)
    try:
        simulator.reset(0)
        found = simulator.render()
    except NotImplementedError:
        raise _no_pictures(hyper_params, "cannot be rendered") from None
    except DependencyNotInstalled as error:
        why = f"cannot be rendered here: {str(error).removesuffix('.')}"
        raise _no_pictures(hyper_params, why) from error
    finally:
        simulator.close()
    shape = getattr(found, "shape", None)
    if shape is None or len(shape) != 3 or shape[-1] != 3:
        what = f"an array of shape {shape}" if shape else repr(found)
        raise _no_pictures(hyper_params, f"renders {what}, expected bytes of shape (H, W, 3)")


def _takes_mode(source: type) -> bool:
    """Return whether a user's class has the argument; else it renders so by itself."""
    parameters = inspect.signature(source).parameters.values()
    return any(p.name == _MODE or p.kind is p.VAR_KEYWORD for p in parameters)


def _no_pictures(hyper_params: HyperParameters, why: str) -> ParameterError:
    return ParameterError(
        f"gymnasium.num_test_videos: got {hyper_params.gymnasium.num_test_videos}, but the"
        f" environment {hyper_params.dataset!r} {why}. Set it to 0."
    )
