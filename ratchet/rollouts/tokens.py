"""The tokens of replies in rollouts, if requested, for trainers that learn from tokens.

They are stored as JSON in the array ``("agents", "tokens")``, which exists if an agent's parameters
set ``logprobs`` or ``return_token_ids``.
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
    """The tokens of one reply; None if not requested, or not returned by the service.

    ``log_probs`` are those of the reply's tokens, as returned by the service (OpenAI omits the end
    token). If both exist, they have the length of ``token_ids``, the generated tokens, including
    the end token and a stop text. ``prompt_token_ids`` are the prompt's tokens.
    """

    log_probs: tuple[float, ...] | None = None
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the tokens as plain data, without missing fields."""
        values = {
            "log_probs": self.log_probs,
            "token_ids": self.token_ids,
            "prompt_token_ids": self.prompt_token_ids,
        }
        return {name: list(value) for name, value in values.items() if value is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Sequence[float]]) -> Self:
        """Create the tokens from plain data; the inverse of :meth:`to_dict`."""
        return cls(**{name: tuple(value) for name, value in data.items()})  # type: ignore[arg-type]

    def to_json(self) -> str:
        """Return the tokens as JSON, every digit kept."""
        return json.dumps(self.to_dict(), separators=(",", ":"))


def tokens_of(
    rollouts: NestedArrayDict, rollout: int, step: int, agent_index: int
) -> ReplyTokens | None:
    """Return the tokens of an agent's reply; None if it wrote none, or they are unknown.

    Raises
    ------
    DataError
        If the rollouts were sampled without requesting tokens.
    """
    if _KEY not in rollouts:
        raise DataError(
            "rollouts: got none with tokens. Set agents.NAME.logprobs or"
            " agents.NAME.return_token_ids, and sample them again."
        )
    text = rollouts[_KEY][rollout, step, agent_index]
    return None if text is None else ReplyTokens.from_dict(json.loads(text))


def even_out_tokens(batches: Sequence[NestedArrayDict]) -> None:
    """Add an empty array of tokens to all batches, in place, if one of them has it."""
    if any(_KEY in batch for batch in batches):
        for batch in batches:
            if _KEY not in batch:
                batch[_KEY] = np.full_like(batch["agents", "raw_message"], None)
