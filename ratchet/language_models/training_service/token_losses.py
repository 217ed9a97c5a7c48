"""Losses of tokens by their names in the training service's API, with the parameters they read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from torch import Tensor

from ratchet.algorithms.language import losses
from ratchet.algorithms.language.losses import TokenLoss
from ratchet.errors import ParameterError, nearest

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], TokenLoss]
"""Log-probabilities, those of the sampler, advantages and mask, ``[B, T]`` each → the loss."""

LOW, HIGH = "clip_low_threshold", "clip_high_threshold"
"""Bounds of the ratio, as Tinker names them: 1 − ε_lo and 1 + ε_hi of the formulas."""
_PARAMETERS: dict[str, tuple[str, ...]] = {
    "cross_entropy": (),
    "reinforce": (),
    "importance_sampling": (),
    "ppo": (LOW, HIGH),
    "gspo": (LOW, HIGH),
    "cispo": (LOW, HIGH),
    "dro": ("beta",),
}


def find_loss(name: str, config: Mapping[str, float]) -> Loss:
    """Return the loss of a name with the parameters of ``config``.

    Raises
    ------
    ParameterError
        If the name is unknown, or the loss has no such parameter.
    """
    if name not in _PARAMETERS:
        hint = nearest(name, _PARAMETERS)
        raise ParameterError(f"loss: got {name!r}, expected one of {', '.join(_PARAMETERS)}.{hint}")
    for parameter in config:
        if parameter not in _PARAMETERS[name]:
            expected = ", ".join(sorted(_PARAMETERS[name])) or "none"
            raise ParameterError(f"loss_config of {name}: got {parameter!r}, expected {expected}.")
    match name:
        case "cross_entropy":
            return lambda log_prob, _old, _advantage, mask: losses.cross_entropy(log_prob, mask)
        case "reinforce":
            return lambda log_prob, _old, advantage, mask: losses.reinforce(
                log_prob, advantage, mask
            )
        case "importance_sampling":
            return losses.importance_sampling
        case "dro":
            return partial(losses.dro, beta=config.get("beta", 0.05))
        case "cispo":
            low, high = config.get(LOW, 0.8), config.get(HIGH, 1.2)
            return partial(losses.cispo, min_ratio=low, max_ratio=high)
        case "ppo":
            low, high = _distances(config, 0.2, 0.2)
            return partial(losses.ppo_clip, clip_low=low, clip_high=high)
        case _:
            low, high = _distances(config, 3e-4, 4e-4)
            return partial(losses.gspo, clip_low=low, clip_high=high)


def _distances(config: Mapping[str, float], low: float, high: float) -> tuple[float, float]:
    """Return ε_lo and ε_hi: distances of the bounds from 1."""
    return 1 - config.get(LOW, 1 - low), config.get(HIGH, 1 + high) - 1
