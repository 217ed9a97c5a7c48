"""Deprecated path of :mod:`ratchet.algorithms.language.trajectories`."""

from ratchet.algorithms.language.trajectories import batch_advantages as batch_advantages
from ratchet.algorithms.language.trajectories import (
    compute_grpo_advantage_for_trajectories as compute_grpo_advantage_for_trajectories,
)
from ratchet.algorithms.language.trajectories import trajectory_advantages as trajectory_advantages
