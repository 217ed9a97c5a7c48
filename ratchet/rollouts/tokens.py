"""The tokens of replies in rollouts, where they were asked for: what trainers on tokens learn from.

They stand as JSON in the array ``("agents", "tokens")``, which there is if an agent's parameters
ask for ``logprobs`` or ``return_token_ids``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from ratchet.errors import DataError

if TYPE_CHECKING:
    from ratchet.rollouts.nested_array_dict import NestedArrayDict

_KEY = ("agents", "tokens")


@dataclass(frozen=True, slots=True)
class ReplyTokens:
    """The tokens of one reply; None for what wasn't asked for, or the service doesn't say.

    ``log_probs`` are of the tokens of the reply, as the service gives them (of OpenAI's without the
    end token). Where there are both, they have the length of ``token_ids``, which the model wrote,
    the end token and a stop text included. ``prompt_token_ids`` is what it read.
    """

    log_probs: tuple[float, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the tokens as plain data, without what there is not."""
        values = {
            "log_probs": self.log_probs,
            "token_ids": self.token_ids,
            "prompt_token_ids": self.prompt_token_ids,
        }
        return {name: list(value) for name, value in values.items() if value is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Sequence[float]]) -> Self:
        """Make the tokens of plain data; the inverse of :meth:`to_dict`."""
        return cls(**{name: tuple(value) for name, value in data.items()})  # type: ignore[arg-type]

    def to_json(self) -> str:
        """Return the tokens as JSON, every digit kept."""
        return json.dumps(self.to_dict(), separators=(",", ":"))


def tokens_of(
    rollouts: NestedArrayDict, rollout: int, step: int, agent_index: int
) -> ReplyTokens | None:
    """Return the tokens of an agent's reply; None where it wrote none, or nothing is known of them.

    Raises
    ------
    DataError
        If the rollouts were played without asking for any.
    """
    if _KEY not in rollouts:
        raise DataError(
            "rollouts: got none with tokens. Set agents.NAME.logprobs or"
            " agents.NAME.return_token_ids, and play them anew."
        )
    text = rollouts[_KEY][rollout, step, agent_index]
    return None if text is None else ReplyTokens.from_dict(json.loads(text))


def even_out_tokens(batches: Sequence[NestedArrayDict]) -> None:
    """Give all batches the array of tokens, in place, if one has it; it says nothing of others."""
    if any(_KEY in batch for batch in batches):
        for batch in batches:
            if _KEY not in batch:
                batch[_KEY] = np.full_like(batch["agents", "raw_message"], None)
