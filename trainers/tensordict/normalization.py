"""Fit the observation normalisation on frames of the initial agents."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ratchet.scenarios.dataset import DataCursor
from trainers.progress import describe
from trainers.tensordict.collectors import RolloutCollector

if TYPE_CHECKING:
    from ratchet.agents.actor_critic import ActorCritic
    from ratchet.scenarios.tensor_environment import TensorEnvironment

STAGE = "normalization"


@torch.no_grad()
def fit_normalization(
    agents: ActorCritic, environment: TensorEnvironment, *, num_frames: int, seed: int
) -> None:
    """Fit on at least ``num_frames`` frames of the training environment.

    Uses separate generators and a separate data cursor, so that training starts with the same
    data with and without normalisation.
    """
    cursor = DataCursor(len(environment.dataset), seed, purpose=STAGE)
    collector = RolloutCollector(environment, agents, cursor, seed=seed, stage=STAGE)
    rounds = math.ceil(num_frames / environment.frames_per_batch)
    batches = []
    for index in range(rounds):
        describe(f"Normalisation, batch {index + 1} of {rounds}")
        batches.append(collector.collect(index).reshape(-1))
    agents.normalizer.fit(
        torch.cat([batch.select(*agents.normalizer.keys, strict=False) for batch in batches])
    )
