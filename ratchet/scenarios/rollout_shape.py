"""How many episodes are played side by side in one iteration, and for how many steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ratchet.errors import ParameterError
from ratchet.parameters.trainers import RlParameters


@dataclass(frozen=True)
class RolloutShape:
    """``num_envs`` episodes side by side for ``steps`` steps each."""

    num_envs: int
    steps: int

    @property
    def frames(self) -> int:
        """Frames in one iteration."""
        return self.num_envs * self.steps


def rollout_shape(
    rl: RlParameters, max_rounds: int, num_datapoints: int, *, train: bool
) -> RolloutShape:
    """Return the shape of one iteration's rollouts.

    Frames are ``frames_per_batch``; ``rollouts_per_iteration`` times the maximal number of rounds
    where that is given instead, and with neither one rollout for each datapoint. Steps are
    ``steps_per_env_per_iteration``, which must divide the frames; when not given they are the
    maximal number of rounds, and frames are rounded up to whole episodes. Test episodes are always
    played to their end, and never more of them at once than there are datapoints.

    Raises
    ------
    ParameterError
        If the steps don't divide the frames.
    """
    frames = rl.frames_per_batch
    if rl.rollouts_per_iteration is not None:
        frames = rl.rollouts_per_iteration * max_rounds
    if frames is None:
        frames = num_datapoints * max_rounds
    if not train:
        return RolloutShape(min(math.ceil(frames / max_rounds), num_datapoints), max_rounds)
    steps = rl.steps_per_env_per_iteration
    if steps is None:
        return RolloutShape(math.ceil(frames / max_rounds), max_rounds)
    if frames % steps:
        raise ParameterError(
            f"rl.steps_per_env_per_iteration: got {steps}, expected a divisor of the {frames}"
            f" frames of one iteration. {math.ceil(frames / steps) * steps} frames would do."
        )
    return RolloutShape(frames // steps, steps)
