"""Frames that training is planned to collect, against which tests compare recorded frames."""

from __future__ import annotations

import math

from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.reports.comparison.training_costs import NORMALIZATION


def planned_frames(hyper_params: HyperParameters) -> dict[str, int]:
    """Return the frames that training with networks collects, by stage, from its parameters."""
    each = hyper_params.rl.frames_per_batch
    iterations = sum(phase.num_iterations for phase in hyper_params.phases or ())
    imitation = hyper_params.imitation
    agents = () if imitation.run is not None else imitation.agents
    planned = {f"imitate-{agent}": imitation.num_iterations * each for agent in agents}
    if hyper_params.rl.normalize_observations:
        batches = math.ceil(hyper_params.rl.num_normalization_steps / each)
        planned[NORMALIZATION] = batches * each
    return planned | {"train": (iterations or hyper_params.rl.num_iterations) * each}
