"""Losses of tokens by name: functions of log-probabilities that return one term for each token.

Whoever sums them weights them. ``rows`` says to which example each token belongs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ratchet.errors import ParameterError, nearest

_CLIP = (0.2, 0.2)
_CLIP_OF_SEQUENCES = (3e-4, 4e-4)


@dataclass(frozen=True, slots=True)
class Tokens:
    """What losses read, float[N] but for ``rows``, int64[N].

    ``old`` are the sampler's log-probabilities.
    """

    log_probs: Tensor
    old: Tensor
    advantages: Tensor
    rows: Tensor

    @property
    def ratio(self) -> Tensor:
        """How much likelier a token is than when it was sampled."""
        return (self.log_probs - self.old).exp()


Config = Mapping[str, float]
Loss = Callable[[Tokens, Config], Tensor]


def cross_entropy(tokens: Tokens, config: Config) -> Tensor:
    """-log p."""
    return -tokens.log_probs


def reinforce(tokens: Tokens, config: Config) -> Tensor:
    """-A log p (Williams 1992)."""
    return -tokens.advantages * tokens.log_probs


def importance_sampling(tokens: Tokens, config: Config) -> Tensor:
    """-A r, r = p / p_old."""
    return -tokens.advantages * tokens.ratio


def ppo(tokens: Tokens, config: Config) -> Tensor:
    """-min(A r, A clip(r)) (Schulman et al. 2017, equation 7), with a bound for each side."""
    return _clipped(tokens.ratio, tokens.advantages, _bounds(config))


def gspo(tokens: Tokens, config: Config) -> Tensor:
    """PPO's with one ratio for an example, the geometric mean (Zheng et al. 2025, equation 7).

    The gradient is that of GSPO-token: each token's own where advantages differ.
    """
    apart = (tokens.log_probs - tokens.old).detach()
    count = int(tokens.rows.max()) + 1 if tokens.rows.numel() else 0
    sums = apart.new_zeros(count).index_add(0, tokens.rows, apart)
    lengths = apart.new_zeros(count).index_add(0, tokens.rows, torch.ones_like(apart))
    mean = (sums / lengths.clamp(min=1))[tokens.rows].exp()
    ratio = mean * (tokens.log_probs - tokens.log_probs.detach()).exp()
    return _clipped(ratio, tokens.advantages, _bounds(config, *_CLIP_OF_SEQUENCES))


def cispo(tokens: Tokens, config: Config) -> Tensor:
    """-A stop(clip(r)) log p (MiniMax-M1 2025, equation 4)."""
    low, high = _bounds(config)
    return -tokens.advantages * tokens.ratio.detach().clamp(low, high) * tokens.log_probs


def dro(tokens: Tokens, config: Config) -> Tensor:
    """-A log p + β / 2 (log p - log p_old)² (Richemond et al. 2024)."""
    apart = tokens.log_probs - tokens.old
    beta = config.get("beta", 0.05)
    return -tokens.advantages * tokens.log_probs + 0.5 * beta * apart.square()


_BOUNDS = frozenset({"clip_low_threshold", "clip_high_threshold"})
_LOSSES: dict[str, tuple[Loss, frozenset[str]]] = {
    "cross_entropy": (cross_entropy, frozenset()),
    "reinforce": (reinforce, frozenset()),
    "importance_sampling": (importance_sampling, frozenset()),
    "ppo": (ppo, _BOUNDS),
    "gspo": (gspo, _BOUNDS),
    "cispo": (cispo, _BOUNDS),
    "dro": (dro, frozenset({"beta"})),
}


def find_loss(name: str, config: Config) -> Loss:
    """Return the loss of a name, which reads these figures.

    Raises
    ------
    ParameterError
        If there is none, or it reads no such figure.
    """
    if name not in _LOSSES:
        known = ", ".join(_LOSSES)
        hint = nearest(name, _LOSSES)
        raise ParameterError(f"loss: got {name!r}, expected one of {known}.{hint}")
    loss, read = _LOSSES[name]
    for figure in config:
        if figure not in read:
            expected = ", ".join(sorted(read)) or "none"
            raise ParameterError(f"loss_config of {name}: got {figure!r}, expected {expected}.")
    return loss


def clip_fractions(tokens: Tokens, config: Config) -> tuple[float, float]:
    """Return the share of tokens whose ratio is cut from below and from above."""
    if not tokens.rows.numel():
        return 0.0, 0.0
    low, high = _bounds(config)
    ratio = tokens.ratio.detach()
    below = (ratio < low) & (tokens.advantages < 0)
    above = (ratio > high) & (tokens.advantages > 0)
    return float(below.float().mean()), float(above.float().mean())


def _clipped(ratio: Tensor, advantages: Tensor, bounds: tuple[float, float]) -> Tensor:
    low, high = bounds
    return -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)


def _bounds(config: Config, low: float = _CLIP[0], high: float = _CLIP[1]) -> tuple[float, float]:
    least = config.get("clip_low_threshold", 1 - low)
    return least, config.get("clip_high_threshold", 1 + high)
