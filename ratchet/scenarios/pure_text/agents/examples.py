"""Training examples from rollouts, in the form that fine-tune services read: lines of JSON.

An example is what an agent saw and said in one rollout, cut after its last own reply. All its
replies are trained on (no ``weight`` sets earlier ones aside): the reward that chose the rollout
is the whole episode's. Replies that couldn't be read are in no example. Equal rollouts make equal
bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ratchet.errors import DataError
from ratchet.protocols.decision_scales import ACCEPT_REJECT, DecisionScale
from ratchet.rollouts.nested_array_dict import NestedArrayDict

Example: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Two replies to one prompt, a preferred and a rejected one.

    ``prompt`` is the JSON list of chat messages in rollouts.
    """

    prompt: str
    preferred: str
    non_preferred: str


def supervised_examples(rollouts: NestedArrayDict, agent_index: int) -> list[Example]:
    """Create an example of each of the rollouts [N] in which the agent gave a valid reply."""
    replied = _acted(rollouts, agent_index) & (rollouts["agents", "valid"][:, :, agent_index])
    replies = rollouts["agents", "raw_message"]
    return [
        _example(rollouts, row, step, agent_index, replies[row, step, agent_index])
        for row, step in _last_steps(replied)
    ]


def guess_replaced_examples(
    rollouts: NestedArrayDict, agent_index: int, scale: DecisionScale = ACCEPT_REJECT
) -> list[Example]:
    """Create a verifier's examples of rollouts [N], its last message being the true decision."""
    labels = rollouts["y"]
    return [
        _example(rollouts, row, step, agent_index, f"Decision: {scale.surest(labels[row])}")
        for row, step in _last_steps(_acted(rollouts, agent_index))
    ]


def timestep_pairs(
    preferred: NestedArrayDict, non_preferred: NestedArrayDict, agent_index: int
) -> list[PreferencePair]:
    """Create pairs of an agent's better and worse answers to the same prompts, batch [n] both.

    Raises DataError if they are not as many, or answers to other prompts.
    """

    def column(timesteps: NestedArrayDict, name: str) -> list[str]:
        values: list[str] = timesteps.array(("agents", name))[:, agent_index].tolist()
        return values

    prompts = column(preferred, "prompt")
    if prompts != column(non_preferred, "prompt"):
        raise DataError(
            f"preferences: got {len(preferred)} positive and {len(non_preferred)} negative"
            f" examples of agent {agent_index}, expected answers to the same prompts in one order."
        )
    better, worse = (column(part, "raw_message") for part in (preferred, non_preferred))
    return [PreferencePair(*texts) for texts in zip(prompts, better, worse, strict=True)]


def preference_examples(pairs: Iterable[PreferencePair]) -> list[Example]:
    """Create an example of each pair; pairs of equal replies are dropped."""
    return [
        {
            "input": {"messages": _read_prompt(pair.prompt)},
            "preferred_output": [_reply(pair.preferred)],
            "non_preferred_output": [_reply(pair.non_preferred)],
        }
        for pair in pairs
        if pair.preferred != pair.non_preferred
    ]


def to_lines(examples: Sequence[Example]) -> bytes:
    """Write examples as lines of JSON, UTF-8."""
    lines = [json.dumps(example, ensure_ascii=False, separators=(",", ":")) for example in examples]
    return "".join(line + "\n" for line in lines).encode()


def sha256_of(content: bytes) -> str:
    """Return a file's hash, 64 hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def _acted(rollouts: NestedArrayDict, agent_index: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return the steps in which an agent was called, bool[N, T]."""
    acted: np.ndarray[Any, np.dtype[np.bool_]]
    acted = rollouts["agents", "active"][:, :, agent_index] & ~rollouts["padding"]
    return acted


def _last_steps(where: np.ndarray[Any, np.dtype[np.bool_]]) -> list[tuple[int, int]]:
    """Return (row, last true step) of each row of bool[N, T] that has one."""
    last = where.shape[1] - 1 - np.argmax(where[:, ::-1], axis=1)
    return [(int(row), int(last[row])) for row in np.flatnonzero(where.any(axis=1))]


def _example(
    rollouts: NestedArrayDict, row: int, step: int, agent_index: int, reply: str
) -> Example:
    prompt = rollouts["agents", "prompt"][row, step, agent_index]
    return {"messages": [*_read_prompt(prompt), _reply(reply)]}


def _reply(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _read_prompt(prompt: object) -> list[dict[str, str]]:
    try:
        messages = json.loads(prompt) if isinstance(prompt, str) else None
    except ValueError:
        messages = None
    if not isinstance(messages, list) or not messages:
        raise DataError(
            f"prompt: got {str(prompt)[:80]!r}, expected the JSON list of chat messages that"
            " sampling writes into rollouts."
        )
    return messages
