"""Direct preference optimisation (Rafailov et al. 2023, eq. 7), with some supervision beside it.

The preference alone says nothing of what both answers have in common, and on a small model that
drifts within a few steps until no reply can be read. So the preferred answer's likelihood is
raised too (as in iterative reasoning preference optimisation, Pang et al. 2024, eq. 2).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ratchet.language_models.service.engine.model_folder import CausalModel
from ratchet.language_models.service.training.optimization import TokenSequence, pad
from ratchet.language_models.service.training.tokens import Preference

SUPERVISION = 0.2
_REFERENCE_BATCH = 64


class PreferenceLoss:
    """−log σ(β (log-ratio of the preferred answer − log-ratio of the other)) + α NLL(preferred).

    The token that ends a message counts in the second part alone: pushing it away after the worse
    answer would teach not to stop.

    Parameters
    ----------
    model
        What is trained; as it is now it is the reference too, whose log-probabilities are
        computed here, once.
    beta
        The pull towards the reference, β.
    supervision
        The weight α of the preferred answers' mean negative log-likelihood per token.
    reading
        How many pairs are read at once for the reference.
    """

    def __init__(
        self,
        model: CausalModel,
        pairs: Sequence[Preference],
        beta: float,
        end_ids: Sequence[int],
        supervision: float = SUPERVISION,
        reading: int = _REFERENCE_BATCH,
    ) -> None:
        self._model = model
        self._pairs = pairs
        self._beta = beta
        self._ends = torch.tensor(end_ids)
        self._supervision = supervision
        self._reference = self._reference_log_probs(min(reading, _REFERENCE_BATCH))

    def __len__(self) -> int:
        return len(self._pairs)

    def tokens(self) -> int:
        """Return the number of tokens read in an epoch."""
        return sum(len(p.preferred.ids) + len(p.non_preferred.ids) for p in self._pairs)

    def weight(self, places: Sequence[int]) -> int:
        """Return the number of pairs."""
        return len(places)

    def __call__(
        self, places: Sequence[int], of: Sequence[int] | None = None
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of a batch, or its part in that of the batch ``of``.

        Beside it the share of the pairs put in order, and by how much.
        """
        log_probs, likelihood = self._log_probs([self._pairs[place] for place in places])
        margins = (log_probs - self._reference[list(places)]) @ torch.tensor([1.0, -1.0])
        figures = {
            "reward_accuracy": float((margins > 0).float().mean()),
            "reward_margin": self._beta * float(margins.detach().mean()),
        }
        preference = -F.logsigmoid(self._beta * margins).mean()
        if of is not None:
            preference = preference * (len(places) / len(of))
            likelihood = likelihood * (self._preferred_tokens(places) / self._preferred_tokens(of))
        return preference - self._supervision * likelihood, figures

    def _preferred_tokens(self, places: Sequence[int]) -> int:
        return sum(sum(w > 0 for w in self._pairs[place].preferred.weights[1:]) for place in places)

    def _reference_log_probs(self, size: int) -> Tensor:
        """float32[N, 2]."""
        with torch.no_grad():
            parts = [
                self._log_probs(self._pairs[start : start + size])[0]
                for start in range(0, len(self._pairs), size)
            ]
        return torch.cat(parts)

    def _log_probs(self, pairs: Sequence[Preference]) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the preferred and the other answers; the preferred tokens' mean.

        float32[B, 2] and float32[].
        """
        both: list[TokenSequence] = [pair.preferred for pair in pairs]
        both += [pair.non_preferred for pair in pairs]
        ids, weights = pad(both)
        chosen = weights[:, 1:] > 0
        following = ids[:, 1:][chosen]
        logits = self._model.chosen_logits(ids[:, :-1], chosen)
        scores = -F.cross_entropy(logits, following, reduction="none")
        rows = chosen.nonzero()[:, 0]
        compared = scores * ~torch.isin(following, self._ends)
        sums = torch.zeros(len(both)).index_add(0, rows, compared)
        return sums.view(2, len(pairs)).T, scores[rows < len(pairs)].mean()
