"""Direct preference optimisation (Rafailov et al. 2023, eq. 7): a plain loop over pairs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ratchet.language_models.service.model_folder import CausalModel
from ratchet.language_models.service.optimization import TokenSequence, pad
from ratchet.language_models.service.training_examples import Preference

_REFERENCE_BATCH = 64


class PreferenceLoss:
    """−log σ(β (log-ratio of the preferred answer − log-ratio of the other)), averaged.

    Parameters
    ----------
    model
        What is trained; as it is now it is the reference too, whose log-probabilities are
        computed here, once.
    pairs
        What it is trained on.
    beta
        The pull towards the reference.
    """

    def __init__(self, model: CausalModel, pairs: Sequence[Preference], beta: float) -> None:
        self._model = model
        self._pairs = pairs
        self._beta = beta
        self._reference = self._reference_log_probs()

    def __len__(self) -> int:
        return len(self._pairs)

    def tokens(self) -> int:
        """How many tokens are read in an epoch."""
        return sum(len(p.preferred.ids) + len(p.non_preferred.ids) for p in self._pairs)

    def __call__(self, places: Sequence[int]) -> tuple[Tensor, dict[str, float]]:
        """Give the loss of a batch; the share of pairs put in order, and by how much."""
        log_probs = self._log_probs([self._pairs[place] for place in places])
        margins = (log_probs - self._reference[list(places)]) @ torch.tensor([1.0, -1.0])
        figures = {
            "reward_accuracy": float((margins > 0).float().mean()),
            "reward_margin": self._beta * float(margins.detach().mean()),
        }
        return -F.logsigmoid(self._beta * margins).mean(), figures

    def _reference_log_probs(self) -> Tensor:
        """float32[N, 2]."""
        with torch.no_grad():
            parts = [
                self._log_probs(self._pairs[start : start + _REFERENCE_BATCH])
                for start in range(0, len(self._pairs), _REFERENCE_BATCH)
            ]
        return torch.cat(parts)

    def _log_probs(self, pairs: Sequence[Preference]) -> Tensor:
        """Log-probabilities of the preferred and the other answers, float32[B, 2]."""
        both: list[TokenSequence] = [pair.preferred for pair in pairs]
        both += [pair.non_preferred for pair in pairs]
        ids, weights = pad(both)
        chosen = weights[:, 1:] > 0
        logits = self._model.chosen_logits(ids[:, :-1], chosen)
        scores = -F.cross_entropy(logits, ids[:, 1:][chosen], reduction="none")
        sums = torch.zeros(len(both)).index_add(0, chosen.nonzero()[:, 0], scores)
        return sums.view(2, len(pairs)).T
