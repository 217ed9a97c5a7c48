"""Environments of TorchRL's that tests name by their path."""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    OneHot,
    Unbounded,
)
from torchrl.envs import EnvBase

ACTIONS = {
    "choice": lambda: Categorical(3),
    "one hot": lambda: OneHot(3),
    "several": lambda: MultiCategorical([2, 3]),
    "bits": lambda: Binary(2, dtype=torch.int8),
    "reals": lambda: Bounded(-1.0, 1.0, (2,)),
    "unbounded": lambda: Unbounded((1,)),
}


class Noisy(EnvBase):
    """Observations are numbers of torch's global generator and the steps; rewards large actions."""

    def __init__(self, actions="choice", sizes=None):
        super().__init__()
        self.length = (sizes or {}).get("length", 5)
        self.observation_spec = Composite(
            noise=Unbounded((2,)), inner=Composite(steps=Unbounded((1,)))
        )
        self.action_spec = ACTIONS[actions]()
        self.reward_spec = Unbounded((1,))

    def _seen(self):
        steps = TensorDict({"steps": torch.tensor([float(self.steps)])}, [])
        return {"noise": torch.rand(2), "inner": steps}

    def _reset(self, tensordict):
        self.steps = 0
        return TensorDict(self._seen(), [])

    def _step(self, tensordict):
        assert self.action_spec.is_in(tensordict["action"])
        self.steps += 1
        over = torch.tensor([self.steps >= self.length])
        paid = tensordict["action"].float().mean().reshape(1)
        ends = {"done": over, "terminated": over.clone()}
        return TensorDict({**self._seen(), "reward": paid, **ends}, [])

    def _set_seed(self, seed):
        pass


class Pair(EnvBase):
    """Two agents, with a reward for each."""

    def __init__(self):
        super().__init__()
        self.observation_spec = Composite(observation=Unbounded((2, 1)))
        self.action_spec = Categorical(3, shape=(2,))
        self.reward_spec = Unbounded((2, 1))

    def _reset(self, tensordict):
        raise NotImplementedError

    def _step(self, tensordict):
        raise NotImplementedError

    def _set_seed(self, seed):
        pass
