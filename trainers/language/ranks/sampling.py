"""Sampling in ranks: each generates some of the completions with a complete copy of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from ratchet.language_models.engines.in_process import InProcessEngine
from ratchet.language_models.engines.rollouts import Completion, SampleRequest
from ratchet.language_models.local.model import LanguageModel
from ratchet.language_models.local.sharding import gather, local_shard


class RankSampler:
    """Generates with the current weights of a sharded model.

    Parameters
    ----------
    sharded
        The trained model.
    load
        Loads a complete model with the same frozen weights onto this process's device.
    options
        Options of the engine.
    """

    def __init__(
        self, sharded: LanguageModel, load: Callable[[], LanguageModel], options: Mapping[str, Any]
    ) -> None:
        self._sharded, self._load, self._options = sharded, load, options
        self.is_outdated = True
        """Whether the sharded model has changed since the last call."""

    @cached_property
    def _complete(self) -> LanguageModel:
        """The model that generates; loaded with the first requests."""
        return self._load()

    def generate(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Generate completions of this process's requests; all processes take part."""
        if self.is_outdated:
            self._gather_weights()
        return InProcessEngine(self._complete, **self._options).generate(requests)

    @torch.no_grad()
    def _gather_weights(self) -> None:
        pairs = zip(self._complete.all_parameters(), self._sharded.all_parameters(), strict=True)
        for weight, sharded in pairs:
            if sharded.requires_grad:
                weight.copy_(gather(local_shard(sharded), sharded))
        self.is_outdated = False
