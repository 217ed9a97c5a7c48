"""Variance of replayed credit relative to group baselines, at equal sampled tokens.

In each game, agents speak in turn and have separate softmax policies; a policy has logits for each
message history that the agent sees. Payoffs and logits are random, and every outcome is
enumerated: variances (traces of covariances) and expectations are exact. A redrawn turn costs its
own tokens and those of every later turn that depends on it.

"group" compares complete episodes, leave-one-out, as `pure_text_grpo` with
`baseline: leave_one_out`: a group at the redraws' cost, or without a limit. Below 1,
replayed credit has the smaller variance for the same tokens.

Run it:  python benchmarks/replayed_credit.py     # 20 CPU-seconds
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Messages: TypeAlias = tuple[int, ...]
Payoff: TypeAlias = Callable[[np.random.Generator, Messages], Floats]

SEEDS = range(8)
REDRAWS = (1, 3)
NO_LIMIT = 1e9


@dataclass(frozen=True)
class Game:
    """A game: for each turn the earlier turns that its agent sees, its messages and tokens."""

    sees: tuple[Messages, ...]
    num_messages: Messages
    tokens: Messages
    payoff: Payoff

    @property
    def num_turns(self) -> int:
        """The number of turns; each has a separate policy."""
        return len(self.sees)

    def cost(self, redraws: Mapping[int, int]) -> float:
        """Return the tokens of an episode and its redraws of each turn, in episodes."""
        spent = sum(self.tokens)
        for turn, number in redraws.items():
            affected = {turn}
            for later in range(turn + 1, self.num_turns):
                if affected & set(self.sees[later]):
                    affected.add(later)
            spent += number * sum(self.tokens[each] for each in affected)
        return spent / sum(self.tokens)


def normal(generator: np.random.Generator, sizes: Messages) -> Floats:
    """Return an independent payoff for each outcome."""
    return generator.normal(size=sizes)


def additive(generator: np.random.Generator, sizes: Messages) -> Floats:
    """Return a sum of payoffs of the turns."""
    grids = np.ix_(*(generator.normal(size=size) for size in sizes))
    return np.broadcast_to(sum(grids), sizes)


def judged(_: np.random.Generator, sizes: Messages) -> Floats:
    """Return 1 if the last message, a decision, is right."""
    return np.broadcast_to(np.arange(sizes[-1]) == 1, sizes).astype(np.float64)


class Sampled:
    """A game with random policies and payoffs."""

    def __init__(self, game: Game, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self.game = game
        self.policies = []
        for seen, size in zip(game.sees, game.num_messages, strict=True):
            odds = np.exp(generator.normal(size=(*(game.num_messages[t] for t in seen), size)))
            self.policies.append(odds / odds.sum(-1, keepdims=True))
        self.reward = game.payoff(generator, game.num_messages)

    def policy(self, prefix: Messages) -> Floats:
        """Return the probabilities of the next message."""
        turn = len(prefix)
        chances: Floats = self.policies[turn][tuple(prefix[t] for t in self.game.sees[turn])]
        return chances

    def score(self, turn: int, episode: Messages) -> Floats:
        """Return the gradient of the log-probability of a turn's message in its logits."""
        score = np.zeros(self.policies[turn].shape)
        context = tuple(episode[t] for t in self.game.sees[turn])
        score[context] -= self.policies[turn][context]
        score[(*context, episode[turn])] += 1
        return score.ravel()

    def continuations(self, prefix: Messages, stop: int) -> Iterator[tuple[Messages, float]]:
        """Iterate over the possible messages until a turn, with their probability."""
        if len(prefix) == stop:
            yield prefix, 1.0
            return
        for message, chance in enumerate(self.policy(prefix).tolist()):
            for episode, rest in self.continuations((*prefix, message), stop):
                yield episode, chance * rest

    def numbers(self, turn: int) -> list[tuple[float, float]]:
        """Return intervals of a turn's random number that pick the same message: middle, width."""
        inner = self.policies[turn].cumsum(-1)[..., :-1].ravel()
        edges = np.unique(np.concatenate([[0.0, 1.0], inner]))
        return list(
            zip(((edges[1:] + edges[:-1]) / 2).tolist(), np.diff(edges).tolist(), strict=True)
        )

    def replay(self, prefix: Messages, numbers: Iterable[float]) -> Messages:
        """Continue a prefix with given random numbers."""
        for number in numbers:
            prefix = (*prefix, int(np.searchsorted(self.policy(prefix).cumsum(), number)))
        return prefix


def leave_one_out(
    chance: Floats, reward: Floats, score: Floats, draws: float
) -> tuple[Floats, float]:
    """Return mean and mean square of the leave-one-out estimate from independent draws.

    It is a U-statistic with the kernel (r − r')(s − s') / 2, whose variance is known.
    """
    mean = (chance * reward) @ score
    single = 0.5 * (reward[:, None] * score - (chance @ reward) * score + mean)
    first = chance @ (single**2).sum(1) - mean @ mean
    products = score @ score.T
    norms = np.diag(products)
    distance = norms[:, None] + norms - 2 * products
    kernel = (reward[:, None] - reward) ** 2 * distance / 4
    second = chance @ kernel @ chance - mean @ mean
    variance = 2 / (draws * (draws - 1)) * (2 * (draws - 2) * first + second)
    return mean, float(mean @ mean + variance)


def group_variance(sampled: Sampled, turn: int, draws: float) -> tuple[Floats, float]:
    """Return the gradient of a turn's policy, and the variance of its estimate from a group."""
    episodes, chances = zip(*sampled.continuations((), sampled.game.num_turns), strict=True)
    rewards = np.array([sampled.reward[episode] for episode in episodes])
    scores = np.array([sampled.score(turn, episode) for episode in episodes])
    mean, square = leave_one_out(np.array(chances), rewards, scores, draws)
    return mean, square - float(mean @ mean)


def replayed_variance(
    sampled: Sampled, turn: int, redraws: int, *, common: bool
) -> tuple[Floats, float]:
    """Return the same for replayed credit; ``common``: with common random numbers."""
    last = sampled.game.num_turns
    total, square = np.zeros(sampled.policies[turn].size), 0.0
    later = [sampled.numbers(each) for each in range(turn + 1, last)]
    for prefix, reached in sampled.continuations((), turn):
        # Each outcome of the shared draws: the later turns' numbers, or the prefix only.
        for shared in itertools.product(*later) if common else [()]:
            weight = reached * float(np.prod([width for _, width in shared]))
            if common:
                numbers = [middle for middle, _ in shared]
                chances = sampled.policy(prefix).tolist()
                episodes = [sampled.replay((*prefix, m), numbers) for m in range(len(chances))]
            else:
                episodes, chances = zip(*sampled.continuations(prefix, last), strict=True)
            rewards = np.array([sampled.reward[episode] for episode in episodes])
            scores = np.array([sampled.score(turn, episode) for episode in episodes])
            mean, mean_square = leave_one_out(np.array(chances), rewards, scores, redraws + 1)
            total += weight * mean
            square += weight * mean_square
    return total, square - float(total @ total)


def ratios(game: Game, redraws: Mapping[int, int], seed: int) -> Floats:
    """Return variance × tokens of replayed credit relative to that of groups.

    With common random numbers and with fresh ones, each relative to a group of equal tokens; with
    common ones relative to a group without limit.
    """
    sampled = Sampled(game, seed)
    cost = game.cost(redraws)
    size = max(2.0, cost)
    variances = np.zeros(4)
    for turn, number in redraws.items():
        gradient, group = group_variance(sampled, turn, size)
        replayed, variance = replayed_variance(sampled, turn, number, common=True)
        np.testing.assert_allclose(replayed, gradient, rtol=0, atol=1e-9)
        variances += [
            variance,
            replayed_variance(sampled, turn, number, common=False)[1],
            group * size / cost,
            group_variance(sampled, turn, NO_LIMIT)[1] * NO_LIMIT / cost,
        ]
    return np.array(
        [variances[0] / variances[2], variances[1] / variances[2], variances[0] / variances[3]]
    )


def after(turns: int) -> tuple[Messages, ...]:
    """Return the turns seen if each agent sees the message before."""
    return tuple((turn - 1,) if turn else () for turn in range(turns))


GAMES = {
    "prover 50 tokens, judge 4": Game(after(2), (4, 2), (50, 4), judged),
    "prover, judge, random payoff": Game(after(2), (3, 2), (1, 1), normal),
    "dialogue of 3, random payoff": Game(((), (0,), (0, 1)), (3, 3, 3), (1, 1, 1), normal),
    "dialogue of 4, payoffs add up": Game(after(4), (3,) * 4, (1,) * 4, additive),
    "dialogue of 6, payoffs add up": Game(after(6), (2,) * 6, (1,) * 6, additive),
    "4 provers 50 tokens, judge 4": Game(
        ((), (), (), (), (0, 1, 2, 3)), (2,) * 5, (50, 50, 50, 50, 4), normal
    ),
    "4 that don't see each other": Game(((),) * 4, (3,) * 4, (1,) * 4, additive),
    "6 that don't see each other": Game(((),) * 6, (2,) * 6, (1,) * 6, additive),
}


def main() -> None:
    """Print a table: for the first turn, the last and all turns, each number of redraws."""
    print(
        f"{'game':31}{'redrawn':9}{'k':>5}{'tokens':>8}{'common':>9}{'fresh':>7}"
        f"{'unlimited group':>17}"
    )
    for name, game in GAMES.items():
        last = game.num_turns - 1
        for label, turns in (("first", (0,)), ("last", (last,)), ("all", range(last + 1))):
            for number in REDRAWS:
                print_row(name, label, dict.fromkeys(turns, number))
    print_row("prover 50 tokens, judge 4", "all", {0: 1, 1: 3})


def print_row(name: str, label: str, redraws: Mapping[int, int]) -> None:
    """Print the mean ratios of a game over the seeds."""
    game = GAMES[name]
    means = np.mean([ratios(game, redraws, seed) for seed in SEEDS], axis=0)
    numbers = ", ".join(str(number) for number in sorted(set(redraws.values())))
    print(
        f"{name:31}{label:9}{numbers:>5}{game.cost(redraws):>7.1f}x"
        f"{means[0]:>9.2f}{means[1]:>7.2f}{means[2]:>17.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
