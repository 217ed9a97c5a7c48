"""Games with exact derivatives, for tests of opponent shaping."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from ratchet.algorithms.opponent_shaping import Product
from ratchet.algorithms.sampled_game import Loss, Player, SampledGame, policy_slope


class ExactGame:
    """Differentiable losses of flat parameters, with dense derivatives."""

    def __init__(
        self,
        losses: Mapping[str, Callable[[Mapping[str, Tensor]], Tensor]],
        params: Mapping[str, Tensor],
    ) -> None:
        self.losses = losses
        self.params = {name: value.detach().double() for name, value in params.items()}

    def _of(self, loss: str, agents: Sequence[str]) -> Callable[..., Tensor]:
        def value(*given: Tensor) -> Tensor:
            return self.losses[loss]({**self.params, **dict(zip(agents, given, strict=True))})

        return value

    def gradient(self, loss: str, agent: str) -> Tensor:
        return torch.autograd.functional.jacobian(self._of(loss, [agent]), self.params[agent])

    def mixed(self, loss: str, one: str, other: str) -> Tensor:
        """Return ∇_one∇_other L_loss, dense."""
        inputs = (self.params[one], self.params[other])
        return torch.autograd.functional.hessian(self._of(loss, [one, other]), inputs)[0][1]

    def hessian(self, agent: str) -> Tensor:
        """Return ∇²_agent L_agent, dense."""
        return torch.autograd.functional.hessian(self._of(agent, [agent]), self.params[agent])

    def mixed_products(self, leader: str, products: Iterable[Product]) -> Tensor:
        return sum(self.mixed(loss, leader, f) @ vector for loss, f, vector in products)

    def hessian_products(self, agent: str, vectors: Tensor) -> Tensor:
        return vectors @ self.hessian(agent)


def quadratic_game(num_agents: int, size: int, seed: int) -> ExactGame:
    """L_i = ½θᵀM_iθ + c_iᵀθ over all agents' parameters; block (i, i) is positive definite."""
    generator = torch.Generator().manual_seed(seed)
    names = [chr(ord("a") + index) for index in range(num_agents)]
    total = num_agents * size
    matrices, shifts = {}, {}
    for index, name in enumerate(names):
        drawn = torch.randn(total, total, generator=generator, dtype=torch.float64)
        matrix = 0.5 * (drawn + drawn.T)
        own = slice(index * size, (index + 1) * size)
        matrix[own, own] = drawn[own, own] @ drawn[own, own].T + torch.eye(size)
        matrices[name] = matrix
        shifts[name] = torch.randn(total, generator=generator, dtype=torch.float64)

    def loss(name: str) -> Callable[[Mapping[str, Tensor]], Tensor]:
        def value(params: Mapping[str, Tensor]) -> Tensor:
            theta = torch.cat([params[other] for other in names])
            return 0.5 * theta @ matrices[name] @ theta + shifts[name] @ theta

        return value

    start = {name: torch.randn(size, generator=generator) for name in names}
    return ExactGame({name: loss(name) for name in names}, start)


def matching_pennies(x: float, y: float) -> ExactGame:
    """Matching pennies: heads with probabilities σ(x), σ(y); agent a wins if they match."""

    def match(params: Mapping[str, Tensor]) -> Tensor:
        p, q = (torch.sigmoid(params[name]).squeeze() for name in "ab")
        return (2 * p - 1) * (2 * q - 1)

    params = {"a": torch.tensor([x]), "b": torch.tensor([y])}
    return ExactGame({"a": lambda p: -match(p), "b": match}, params)


def tandem(x: float, y: float) -> ExactGame:
    """L = (x + y)² − 2x for a, − 2y for b (Letcher et al. 2019): fixed points at x + y = 1."""

    def loss(name: str) -> Callable[[Mapping[str, Tensor]], Tensor]:
        return lambda p: ((p["a"] + p["b"]) ** 2 - 2 * p[name]).squeeze()

    return ExactGame({n: loss(n) for n in "ab"}, {"a": torch.tensor([x]), "b": torch.tensor([y])})


class TreeGame:
    """Enumerable multi-step game with tabular policies.

    An agent chooses 0 or 1 by a softmax over the row of its table for the history so far.
    Rewards are random numbers for each step and history.
    """

    def __init__(self, turns: Sequence[Sequence[str]], seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.turns = turns
        self.names = sorted({name for turn in turns for name in turn})
        moves = [len(turn) for turn in turns]
        self.num_histories = [2 ** sum(moves[:t]) for t in range(len(turns) + 1)]
        rows = sum(self.num_histories)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.params = {name: draw(rows * 2) for name in self.names}
        self.rewards = {name: draw(len(turns), self.num_histories[-1]) for name in self.names}
        for name in self.names:  # a reward depends only on the history up to its step
            for t in range(len(turns)):
                groups = self.rewards[name][t].view(self.num_histories[t + 1], -1)
                groups[:] = groups[:, :1].clone()
        self.baselines = {name: draw(len(turns), self.num_histories[-1]) for name in self.names}
        self.outcomes = list(itertools.product([0, 1], repeat=sum(moves)))

    def log_probs(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return log-probabilities of choices, [outcomes, steps] per agent; 0 where inactive."""
        columns = {
            name: torch.zeros(len(self.outcomes), len(self.turns)).double() for name in params
        }
        tables = {n: torch.log_softmax(value.view(-1, 2), -1) for n, value in params.items()}
        result = {name: [] for name in params}
        place, offset = 0, 0
        for t, turn in enumerate(self.turns):
            history = [self._index(outcome[:place]) + offset for outcome in self.outcomes]
            for name in self.names:
                if name in turn:
                    move = [outcome[place + list(turn).index(name)] for outcome in self.outcomes]
                    result[name].append(tables[name][history, move])
                else:
                    result[name].append(columns[name][:, t])
            place += len(turn)
            offset += self.num_histories[t]
        return {name: torch.stack(found, 1) for name, found in result.items()}

    @staticmethod
    def _index(history: Sequence[int]) -> int:
        return int("0" + "".join(map(str, history)), 2)

    def acting(self, name: str) -> Tensor:
        rows = torch.tensor([name in turn for turn in self.turns])
        return rows.expand(len(self.outcomes), -1)

    def exact(self) -> ExactGame:
        """Return the losses −E Σ_t r_t, summed over all outcomes."""

        def loss(name: str) -> Callable[[Mapping[str, Tensor]], Tensor]:
            def value(params: Mapping[str, Tensor]) -> Tensor:
                likely = sum(found.sum(1) for found in self.log_probs(params).values()).exp()
                return -(likely * self.rewards[name].sum(0)).sum()

            return value

        return ExactGame({name: loss(name) for name in self.names}, self.params)

    def sampled(self, *, with_baseline: bool = True) -> SampledGame:
        """Return the estimator on a batch of all outcomes with their exact weights."""
        params = {n: value.clone().requires_grad_() for n, value in self.params.items()}
        log_probs = self.log_probs(params)
        likely = sum(found.detach().sum(1) for found in log_probs.values()).exp()
        losses = {}
        for name in self.names:
            to_go = self.rewards[name].flip(0).cumsum(0).flip(0).T  # [outcomes, steps]
            advantage = to_go - self._baseline(name) if with_baseline else to_go
            slopes = {n: policy_slope(self.acting(n), to_go) for n in self.names}
            losses[name] = Loss(-advantage * likely.unsqueeze(1), slopes)
        players = {n: Player([params[n]], log_probs[n]) for n in self.names}
        return SampledGame(players, losses, torch.zeros(likely.shape[0], len(self.turns)).long())

    def _baseline(self, name: str) -> Tensor:
        """Return an arbitrary function of the history before the step."""
        columns = []
        for t, count in enumerate(self.num_histories[:-1]):
            groups = self.baselines[name][t].view(count, -1)
            columns.append(groups[:, :1].expand_as(groups).reshape(-1))
        return torch.stack(columns, 1)
