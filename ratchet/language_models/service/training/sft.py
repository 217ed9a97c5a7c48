"""Supervised fine-tuning: a plain loop over chats."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from ratchet.language_models.service.engine.model_folder import CausalModel
from ratchet.language_models.service.training.optimization import TokenSequence, pad


class SupervisedLoss:
    """Mean cross-entropy of the tokens that are to be learned."""

    def __init__(self, model: CausalModel, sequences: Sequence[TokenSequence]) -> None:
        self._model = model
        self._sequences = sequences

    def __len__(self) -> int:
        return len(self._sequences)

    def tokens(self) -> int:
        """Return the number of tokens read in an epoch."""
        return sum(len(sequence.ids) for sequence in self._sequences)

    def weight(self, places: Sequence[int]) -> int:
        """Return the number of tokens that are to be learned."""
        return sum(sum(w > 0 for w in self._sequences[place].weights[1:]) for place in places)

    def __call__(
        self, places: Sequence[int], of: Sequence[int] | None = None
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of a batch, or its part in that of the batch ``of``; no more figures."""
        ids, weights = pad([self._sequences[place] for place in places])
        chosen = weights[:, 1:] > 0
        logits = self._model.chosen_logits(ids[:, :-1], chosen)
        share = 1.0 if of is None else self.weight(places) / self.weight(of)
        targets = ids[:, 1:][chosen].to(logits.device)
        return F.cross_entropy(logits, targets) * share, {}
