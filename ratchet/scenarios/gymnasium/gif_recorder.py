"""Recorder of episodes as animated GIFs of bounded size.

The same episodes give the same bytes. Rollouts need no pictures: a simulator that renders executes
the same actions again.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ratchet.errors import ParameterError
from ratchet.scenarios.gymnasium.catalogue import LibraryGame, SimulatedEnvSpec, find_game

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.gymnasium.simulators import Simulator

_MODE = "render_mode"

MAX_FRAMES = 250
"""Of longer episodes every second frame is shown, every third …"""
MAX_BYTES = 1_500_000
_COLORS = 64
_TICK = 10
"""Milliseconds; what times of frames are multiples of."""


def rendering_simulator(hyper_params: HyperParameters, base_dir: Path | None = None) -> Simulator:
    """Return a simulator of an experiment's environment that renders."""
    game = find_game(hyper_params.replace({"gymnasium.implementation": "simulated"}), base_dir)
    pictures_exist = isinstance(game, SimulatedEnvSpec) and game.renders
    if not pictures_exist or isinstance(game, LibraryGame):
        raise _no_pictures(hyper_params, "is not a gymnasium or PettingZoo environment")
    if game.source is None or _takes_mode(game.source):
        kwargs = {**hyper_params.gymnasium.environment_kwargs, _MODE: "rgb_array"}
        changes: dict[str, Any] = {
            "gymnasium.implementation": "simulated",
            "gymnasium.environment_kwargs": kwargs,
        }
        game = find_game(hyper_params.replace(changes), base_dir)
    assert isinstance(game, SimulatedEnvSpec)  # as before
    return game.make()


def check_pictures(hyper_params: HyperParameters, base_dir: Path | None = None) -> None:
    """Refuse an environment that shows no pictures: ParameterError with the reason."""
    from gymnasium.error import DependencyNotInstalled

    simulator = rendering_simulator(hyper_params, base_dir)
    try:
        simulator.reset(0)
        picture = simulator.render()
    except NotImplementedError:
        raise _no_pictures(hyper_params, "cannot be rendered") from None
    except DependencyNotInstalled as error:
        why = f"cannot be rendered here: {str(error).removesuffix('.')}"
        raise _no_pictures(hyper_params, why) from error
    finally:
        simulator.close()
    shape = getattr(picture, "shape", None)
    if shape is None or len(shape) != 3 or shape[-1] != 3:
        what = f"an array of shape {shape}" if shape else repr(picture)
        raise _no_pictures(hyper_params, f"renders {what}, expected bytes of shape (H, W, 3)")


def _takes_mode(source: type) -> bool:
    """Return whether a user's class has the argument; otherwise it renders without the argument."""
    parameters = inspect.signature(source).parameters.values()
    return any(p.name == _MODE or p.kind is p.VAR_KEYWORD for p in parameters)


def _no_pictures(hyper_params: HyperParameters, why: str) -> ParameterError:
    return ParameterError(
        f"gymnasium.num_test_videos: got {hyper_params.gymnasium.num_test_videos}, but the"
        f" environment {hyper_params.dataset!r} {why}. Set it to 0."
    )


if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL.Image import Image

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.dataset import TensorDictDataset
    from ratchet.scenarios.gymnasium.simulators import Simulator

    Picture = npt.NDArray[np.uint8]

_LARGEST, _SMALLEST = 256, 128
"""Range of the sides of scaled pictures."""


def film_episodes(
    hyper_params: HyperParameters,
    dataset: TensorDictDataset,
    played: Mapping[int, Sequence[Tensor]],
    base_dir: Path | None = None,
) -> tuple[bytes, ...]:
    """Film episodes, given the actions ``[A, K]`` that were taken from each datapoint on."""
    simulator = rendering_simulator(hyper_params, base_dir)
    try:
        films = []
        for datapoint, actions in sorted(played.items()):
            seed = int(dataset["seed"][datapoint])
            pictures = _pictures(simulator, seed, [action.numpy() for action in actions])
            films.append(animated(pictures, simulator.frames_per_second))
        return tuple(films)
    finally:
        simulator.close()


def _pictures(
    simulator: Simulator, seed: int, actions: Sequence[npt.NDArray[Any]]
) -> list[Picture]:
    """Execute the actions [A, K] of an episode; return the pictures before and after each."""
    simulator.reset(seed)
    pictures = [simulator.render()]
    for action in actions:
        step = simulator.step(action)
        pictures.append(simulator.render())
        if (step.terminated | step.truncated).all():
            break
    return pictures


def animated(pictures: Sequence[Picture], frames_per_second: float) -> bytes:
    """Write pictures as an animated GIF; leave some out until it is small enough."""
    stride = -(-len(pictures) // MAX_FRAMES)
    frames = [_frame(picture) for picture in pictures[::stride]]
    while True:
        file = BytesIO()
        first, *others = frames
        duration = max(2, round(stride * 1000 / frames_per_second / _TICK)) * _TICK
        first.save(file, "GIF", save_all=True, append_images=others, duration=duration, loop=0)
        if len(file.getvalue()) <= MAX_BYTES or not others:
            return file.getvalue()
        stride, frames = 2 * stride, frames[::2]


def _frame(picture: Picture) -> Image:
    """Return a picture of moderate size in few colours."""
    from PIL import Image

    image = Image.fromarray(picture)
    side = max(image.size)
    if side > _LARGEST:
        width, height = (max(1, round(length * _LARGEST / side)) for length in image.size)
        image = image.resize((width, height), Image.Resampling.BOX)
    elif side < _SMALLEST:
        factor = -(-_SMALLEST // side)
        width, height = (length * factor for length in image.size)
        image = image.resize((width, height), Image.Resampling.NEAREST)
    return image.quantize(_COLORS, Image.Quantize.FASTOCTREE)
