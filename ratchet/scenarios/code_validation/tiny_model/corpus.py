"""What the base model is trained on: (prompt, reply) pairs from games between hand-written players.

The prompts are those that the compact templates of code validation give in each protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ratchet.language_models.types import ChatMessage
from ratchet.protocols.text_specs import DECIDE_NOW
from ratchet.scenarios.code_validation.tiny_model.players import (
    Exercise,
    Skill,
    argue,
    decide,
    draw_exercise,
)

SHARES = {
    "adp": 0.7,
    "nip": 0.14,
    "two_provers": 0.08,
    "merlin_arthur": 0.04,
    "solo_verifier": 0.04,
}
"""How often each way of play is played; the others are there so that their format is known."""

_ASK = "Compare."
_ASKS_AGAIN = 0.1
_STANCES = ("reject", "accept")


@dataclass(frozen=True, slots=True)
class Reply:
    """A prompt and what a player answered."""

    prompt: tuple[ChatMessage, ...]
    text: str

    @property
    def decides(self) -> bool:
        """Whether it is a verifier's decision."""
        return self.text.startswith("Decision:")


def write_corpus(rng: np.random.Generator, games: int, skill: Skill) -> list[Reply]:
    """Play games and return what each player saw and said."""
    names, shares = list(SHARES), list(SHARES.values())
    plays = {
        "adp": _play_adp,
        "nip": _play_nip,
        "two_provers": _play_two_provers,
        "merlin_arthur": _play_merlin_arthur,
        "solo_verifier": _play_solo_verifier,
    }
    drawn = rng.choice(len(names), size=games, p=shares).tolist()
    return [reply for k in drawn for reply in plays[names[k]](rng, draw_exercise(rng), skill)]


def expert_system(exercise: Exercise, stance: str, role: str = "Expert") -> ChatMessage:
    """What an expert is told first."""
    return ChatMessage("system", f"{role}: {stance}.\n\n{exercise.question}\n\n{exercise.solution}")


def verifier_system(exercise: Exercise, role: str = "Verifier") -> ChatMessage:
    """What a verifier is told first."""
    return ChatMessage("system", f"{role}.\n\n{exercise.question}\n\n{exercise.solution}")


def _play_adp(rng: np.random.Generator, exercise: Exercise, skill: Skill) -> Iterator[Reply]:
    argument = argue(rng, exercise, skill)
    yield Reply((expert_system(exercise, _stance(rng)),), f"Argument:\n{argument}")
    heard = ChatMessage("user", argument, "Expert")
    yield Reply((verifier_system(exercise), heard), decide(rng, [argument], skill))


def _play_nip(rng: np.random.Generator, exercise: Exercise, skill: Skill) -> Iterator[Reply]:
    """Verifier and expert take turns; either begins, and the last turn may be announced."""
    verifier = [verifier_system(exercise, "Verifier who asks")]
    expert = [expert_system(exercise, _stance(rng), "Expert who answers")]
    arguments: list[str] = []
    verifier_speaks = bool(rng.random() < 0.7)
    while True:
        if verifier_speaks:
            yield Reply(tuple(verifier), f"Question: {_ASK}")
            verifier.append(ChatMessage("assistant", f"Question: {_ASK}"))
            expert.append(ChatMessage("user", _ASK, "Verifier"))
        arguments.append(argue(rng, exercise, skill))
        yield Reply(tuple(expert), f"Answer:\n{arguments[-1]}")
        expert.append(ChatMessage("assistant", f"Answer:\n{arguments[-1]}"))
        verifier.append(ChatMessage("user", arguments[-1], "Expert"))
        verifier_speaks = bool(rng.random() < _ASKS_AGAIN) and len(arguments) < 3
        if not verifier_speaks:
            break
    yield Reply((*verifier, *_announcement(rng)), decide(rng, arguments, skill))


def _play_two_provers(
    rng: np.random.Generator, exercise: Exercise, skill: Skill
) -> Iterator[Reply]:
    """As in debate (experts see both channels) and mnip (each its own), verifier first or not."""
    verifier = [verifier_system(exercise, "Verifier who asks two")]
    questions: list[ChatMessage] = []
    sees_both = bool(rng.random() < 0.5)
    if rng.random() < 0.7:
        question = f"To Expert 1: {_ASK}\nTo Expert 2: {_ASK}"
        yield Reply(tuple(verifier), question)
        verifier.append(ChatMessage("assistant", question))
        questions = [ChatMessage("user", _ASK, "Verifier")] * (2 if sees_both else 1)
    arguments = []
    for k in range(2):
        stance = _STANCES[k] if sees_both else _STANCES[1]
        arguments.append(argue(rng, exercise, skill))
        yield Reply((expert_system(exercise, stance), *questions), f"Argument:\n{arguments[-1]}")
    order = rng.permutation(2).tolist()
    heard = [ChatMessage("user", arguments[k], f"Expert_{k + 1}") for k in order]
    yield Reply((*verifier, *heard, *_announcement(rng)), decide(rng, arguments, skill))


def _play_merlin_arthur(
    rng: np.random.Generator, exercise: Exercise, skill: Skill
) -> Iterator[Reply]:
    argument = argue(rng, exercise, skill)
    yield Reply((expert_system(exercise, _stance(rng)),), f"Argument:\n{argument}")
    heard = ChatMessage("user", argument)
    yield Reply((verifier_system(exercise), heard), decide(rng, [argument], skill))


def _play_solo_verifier(
    rng: np.random.Generator, exercise: Exercise, skill: Skill
) -> Iterator[Reply]:
    yield Reply((verifier_system(exercise),), decide(rng, [], skill))


def _stance(rng: np.random.Generator) -> str:
    return _STANCES[int(rng.integers(2))]


def _announcement(rng: np.random.Generator) -> tuple[ChatMessage, ...]:
    """The system's word in a verifier's last turn, which players of long games get at times."""
    return (ChatMessage("system", DECIDE_NOW),) if rng.random() < 0.5 else ()
