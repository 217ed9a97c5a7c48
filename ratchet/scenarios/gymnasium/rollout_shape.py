"""How many environments are played side by side in one iteration, and for how many steps."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ratchet.errors import ParameterError
from ratchet.scenarios.rollout_shape import RolloutShape

if TYPE_CHECKING:
    from ratchet.parameters.trainers import RlParameters
    from ratchet.scenarios.gymnasium.parameters import GymnasiumParameters

DEFAULT_NUM_ENVS = 8
DEFAULT_FRAMES = 1000


def environment_shape(
    rl: RlParameters,
    section: GymnasiumParameters,
    num_datapoints: int,
    *,
    train: bool,
    tests_at_once: bool,
) -> RolloutShape:
    """Return the shape of one iteration's rollouts.

    In training ``gymnasium.num_envs`` environments, 8 by default, for as many steps as make up
    ``rl.frames_per_batch`` (1000 if it is none); ``rl.steps_per_env_per_iteration`` gives the steps
    instead, and the environments then follow from the frames if they are not given.

    In tests all episodes at once, or where that is costly as many as it takes to play them all in
    ``rl.num_test_iterations`` rounds.

    Raises
    ------
    ParameterError
        If environments times steps are not the frames.
    """
    if not train:
        together = math.ceil(num_datapoints / rl.num_test_iterations)
        return RolloutShape(num_datapoints if tests_at_once else together, 1)
    frames, steps, num_envs = rl.frames_per_batch, rl.steps_per_env_per_iteration, section.num_envs
    if rl.rollouts_per_iteration is not None:
        raise ParameterError(
            f"rl.rollouts_per_iteration: got {rl.rollouts_per_iteration}, but how long the episodes"
            " of an environment are is not known before. Set rl.frames_per_batch instead."
        )
    if steps is None:
        num_envs = num_envs or DEFAULT_NUM_ENVS
        steps = math.ceil((frames or DEFAULT_FRAMES) / num_envs)
        return RolloutShape(num_envs, steps)
    if frames is None:
        return RolloutShape(num_envs or DEFAULT_NUM_ENVS, steps)
    if frames % steps or (num_envs is not None and num_envs * steps != frames):
        raise ParameterError(
            f"rl.frames_per_batch: got {frames} with rl.steps_per_env_per_iteration={steps} and"
            f" gymnasium.num_envs={num_envs}, expected environments times steps. Leave out one of"
            " the three."
        )
    return RolloutShape(frames // steps, steps)
