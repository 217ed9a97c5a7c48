"""What no weight changes of frames that are evaluated several times, computed once.

Epochs of minibatches go over the same frames: who acts where, what they perceive and may do, and
what they did stay the same. Shape letters: N frames, b rows in which an agent acts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ratchet.agents.rating import TakenActions
from ratchet.agents.turns import Turn


@dataclass(frozen=True)
class _Remembered:
    """One agent's rows, and where each frame's is: i64 [N], -1 where it does not act."""

    turn: Turn
    taken: TakenActions
    place: Tensor


class FrameMemory:
    """Remembers, of each agent that acts somewhere in N frames, its turn and the actions taken."""

    def __init__(
        self, chosen: Sequence[tuple[Turn, TakenActions]], num_frames: int, device: torch.device
    ) -> None:
        self._agents: dict[str, _Remembered] = {}
        every = torch.arange(num_frames, device=device)
        for turn, actions in chosen:
            place = every
            if turn.rows is not None:
                place = torch.full_like(every, -1)
                place[turn.rows] = every[: len(turn.rows)]
            body = turn.agent.body
            if body is not None:
                turn.inputs.precomputed = body.precompute(turn.inputs)
            self._agents[turn.agent.name] = _Remembered(turn, actions, place)

    def take(
        self, index: Tensor, names: Sequence[str] | None = None
    ) -> list[tuple[Turn, TakenActions]]:
        """Return turns and actions in frames ``index`` i64 [B]; rows of turns are places in it."""
        taken = []
        for name in self._agents if names is None else names:
            known = self._agents.get(name)
            if known is None:
                continue
            places = known.place.index_select(0, index)
            found = (places >= 0).nonzero().flatten()
            if len(found) == 0:
                continue
            rows = None if len(found) == len(index) else found
            places = places if rows is None else places.index_select(0, rows)
            turn = replace(known.turn, rows=rows, inputs=known.turn.inputs.take(places))
            taken.append((turn, known.taken.take(places)))
        return taken
