"""Builders of models for which TorchRL has no config class; referenced by ``_target_``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from tensordict.nn import ProbabilisticTensorDictSequential
    from torch import nn
    from torchrl.data import Bounded

Key: TypeAlias = str | Sequence[str]


def make_categorical_policy(
    network: nn.Module,
    in_keys: Sequence[Key] = ("observation",),
    out_keys: Sequence[Key] = ("action",),
    one_hot: bool = True,
    **kwargs: Any,  # noqa: ANN401 -- the module's own options
) -> ProbabilisticTensorDictSequential:
    """Build a policy for discrete actions: logits, and samples with their log-probability.

    Parameters
    ----------
    network
        Maps observations to logits.
    in_keys, out_keys
        Keys of inputs and actions; the logits are stored next to the latter. Keys of a group
        of agents are lists.
    one_hot
        Whether actions are one-hot vectors, as gymnasium's are in the library, or indices.
    """
    from tensordict.nn import (
        ProbabilisticTensorDictModule,
        ProbabilisticTensorDictSequential,
        TensorDictModule,
    )
    from torch.distributions import Categorical
    from torchrl.modules import OneHotCategorical

    chosen = [_nested(key) for key in out_keys]
    logits = [(*key[:-1], "logits") for key in chosen]
    sampler = ProbabilisticTensorDictModule(
        in_keys={"logits": logits[0]},
        out_keys=chosen,
        distribution_class=OneHotCategorical if one_hot else Categorical,
        return_log_prob=True,
        **kwargs,
    )
    scorer = TensorDictModule(network, in_keys=[_nested(key) for key in in_keys], out_keys=logits)
    return ProbabilisticTensorDictSequential(scorer, sampler)


def _nested(key: Key) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else tuple(key)


def make_action_spec(low: list[float], high: list[float]) -> Bounded:
    """Create the spec of continuous actions between two bounds, both ``[A]``."""
    import torch
    from torchrl.data import Bounded

    bounds = torch.tensor(list(low)), torch.tensor(list(high))
    return Bounded(*bounds, shape=bounds[0].shape, dtype=torch.float32)
