"""Networks' probabilities of actions in games of seats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from tensordict import TensorDict
from torch import Tensor

if TYPE_CHECKING:
    from ratchet.games.match import Floats, Game, Match
    from trainers.tensordict.rl import TensorDictRlTrainer


def seat_policy(trainer: TensorDictRlTrainer, game: Game, match: Match, seat: str) -> Tensor:
    """Return a network's probabilities of the actions of an acting seat, f64 [N]."""
    legal = torch.zeros(1, game.num_actions, dtype=torch.bool)
    legal[0, list(match.legal(seat))] = True
    player = torch.tensor([game.seats.index(seat)])
    return player_policies(trainer, match.observe(seat)[None], legal, player)[0]


@torch.no_grad()
def player_policies(
    trainer: TensorDictRlTrainer, seen: Floats, legal: Tensor, player: Tensor
) -> Tensor:
    """Return the acting players' probabilities of actions: f32 [I, D], [I, N], [I] → f64 [I, N]."""
    agents, size = trainer.combined_agents, [len(seen)]
    shape = (-1, len(agents.agent_names), -1)
    frames = {
        "observation": torch.from_numpy(seen).unsqueeze(1).expand(shape),
        "legal": legal.unsqueeze(1).expand(shape),
    }
    td = TensorDict({"agents": TensorDict(frames, batch_size=size)}, batch_size=size)
    distributions = agents.get_dist(td.to(trainer.device))
    logits = torch.stack([distributions[name].logits for name in agents.agent_names], 1).cpu()
    mine = logits[torch.arange(len(seen)), player].double()
    return torch.where(legal, mine.softmax(-1), 0.0)
