"""Builders of models that the library's configs have no class for; named by ``_target_``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tensordict.nn import ProbabilisticTensorDictSequential
    from torch import nn
    from torchrl.data import Bounded


def make_categorical_policy(
    network: nn.Module,
    in_keys: tuple[str, ...] = ("observation",),
    out_keys: tuple[str, ...] = ("action",),
    one_hot: bool = True,
    **kwargs: Any,  # noqa: ANN401 -- the module's own options
) -> ProbabilisticTensorDictSequential:
    """Make a policy for discrete actions: logits, and samples with their log-probability.

    Parameters
    ----------
    network
        Observations to logits.
    in_keys, out_keys
        What it reads and where the action goes.
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

    sampler = ProbabilisticTensorDictModule(
        in_keys=["logits"],
        out_keys=list(out_keys),
        distribution_class=OneHotCategorical if one_hot else Categorical,
        return_log_prob=True,
        **kwargs,
    )
    logits = TensorDictModule(network, in_keys=list(in_keys), out_keys=["logits"])
    return ProbabilisticTensorDictSequential(logits, sampler)


def make_action_spec(low: list[float], high: list[float]) -> Bounded:
    """Make the spec of continuous actions between two bounds, both ``[A]``."""
    import torch
    from torchrl.data import Bounded

    bounds = torch.tensor(list(low)), torch.tensor(list(high))
    return Bounded(*bounds, shape=bounds[0].shape, dtype=torch.float32)
