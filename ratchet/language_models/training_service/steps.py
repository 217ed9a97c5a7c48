"""Steps of an optimizer as a value: known by their content, and sent verb by verb to a session."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count

from ratchet.errors import ParameterError
from ratchet.language_models.training_service.interface import (
    KEPT_ANSWERS,
    ForwardBackward,
    OptimizerSettings,
    TrainingExample,
    TrainingService,
)


@dataclass(frozen=True, slots=True)
class TrainingSteps:
    """Steps from one model to the next, each along the gradient of its examples' loss.

    Parameters
    ----------
    batches
        The examples of each step; none is empty.
    loss, loss_config
        See :mod:`ratchet.language_models.training_service.token_losses`.
    micro_batch_size
        So many examples are sent at once.

    Raises
    ------
    ParameterError
        If they are more verbs than could be asked for again.
    """

    batches: Sequence[Sequence[TrainingExample]]
    loss: str
    loss_config: Mapping[str, float]
    optimizer: OptimizerSettings
    micro_batch_size: int

    def __post_init__(self) -> None:
        verbs = 1 + sum(1 + len(list(self._parts(batch))) for batch in self.batches)
        if verbs > KEPT_ANSWERS:
            raise ParameterError(
                f"training: got {len(self.batches)} steps in {verbs} verbs, expected at most"
                f" {KEPT_ANSWERS}, which the service can answer again. Take a larger"
                f" micro_batch_size than {self.micro_batch_size}, larger steps, or fewer epochs."
            )

    @property
    def digest(self) -> str:
        """The SHA-256 of all that is sent, 64 hexadecimal digits."""
        text = json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def take(self, session: TrainingService, name: str) -> tuple[str, dict[str, float]]:
        """Take the steps in a session of their own, and keep what they make with its optimizer.

        The session's verbs are numbered from 0, so that steps which were cut off go on where they
        were when they are taken again, and those that were taken are not taken twice.

        Returns
        -------
        tuple
            The model's id, and means over steps: of the loss, of what each token gave, of the
            gradient's norm; ``steps`` and ``tokens`` are sums.
        """
        numbers = count()
        passes: list[ForwardBackward] = []
        norms = []
        for batch in self.batches:
            passes += (
                session.forward_backward(
                    part, loss=self.loss, loss_config=self.loss_config, sequence=next(numbers)
                )
                for part in self._parts(batch)
            )
            norms.append(session.optim_step(self.optimizer, sequence=next(numbers))["grad_norm"])
        model = session.save_weights(sequence=next(numbers), name=name, optimizer=True)
        return model, _together(passes, norms)

    def _parts(self, batch: Sequence[TrainingExample]) -> Iterator[Sequence[TrainingExample]]:
        for start in range(0, len(batch), self.micro_batch_size):
            yield batch[start : start + self.micro_batch_size]


def _together(passes: Sequence[ForwardBackward], norms: Sequence[float]) -> dict[str, float]:
    """Return what all passes have given: means over their tokens, and of losses over steps."""
    metrics = [one.metrics for one in passes]
    tokens = sum(each["tokens"] for each in metrics)
    means = {
        name: sum(each[name] * each["tokens"] for each in metrics) / max(tokens, 1.0)
        for name in metrics[0]
        if name not in ("loss", "tokens")
    }
    return {
        **means,
        "loss": sum(each["loss"] for each in metrics) / len(norms),
        "grad_norm": sum(norms) / len(norms),
        "steps": float(len(norms)),
        "tokens": tokens,
    }
