"""Films of episodes as animated GIFs of bounded size: of the same episodes the same bytes.

Whoever plays needs no pictures: a simulator that renders plays the same actions once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ratchet.scenarios.gymnasium.rendering import rendering_simulator

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from PIL.Image import Image

    from ratchet.parameters.hyper_parameters import HyperParameters
    from ratchet.scenarios.dataset import TensorDictDataset
    from ratchet.scenarios.gymnasium.simulators import Simulator

    Picture = npt.NDArray[np.uint8]

MAX_FRAMES = 250
"""Of longer episodes every second frame is shown, every third …"""
MAX_BYTES = 1_500_000
_LARGEST, _SMALLEST = 256, 128
"""Sides are scaled to lie between these."""
_COLORS = 64
_TICK = 10
"""Milliseconds; what times of frames are multiples of."""


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
    """Play the actions [A, K] of an episode; return what it looked like before and after each."""
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
