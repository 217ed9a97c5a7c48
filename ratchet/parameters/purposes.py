"""What a parameter is read for: said at its field, so that stages' keys have what stages read.

A field says it in its annotation, ``Annotated[int, Purpose.TESTS]``; a class for all other fields
that it defines, ``class Section(SubParameters, read_for=Purpose.LEARNING)``. Each family of
trainers says which of its stages read for what (:mod:`trainers.stage_parameters`). Light: no torch.
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from inspect import get_annotations

from pydantic import BaseModel


class Purpose(Enum):
    """What a parameter can be read for."""

    DATA = "data"
    """Which datapoints there are."""
    GAME = "game"
    """What is played and by whom: every stage but pretraining and waiting."""
    NETWORKS = "networks"
    """What networks are, and how they play; chat models know nothing of it."""
    ROLLOUTS = "rollouts"
    """How many rollouts are played."""
    SPEECH = "speech"
    """How chat models write."""
    BRANCHES = "branches"
    """How rollouts to learn from differ from those of tests."""
    NORMALIZATION = "normalization"
    """How observations are normalised; fitted once, before training."""
    PRETRAINING = "pretraining"
    """How a body is trained alone before the game begins."""
    IMITATION = "imitation"
    """How agents learn what others do before the game begins."""
    LEARNING = "learning"
    """How networks learn."""
    CRITIC = "critic"
    """How a critic learns, where there is one."""
    LEARNING_ALONE = "learning_alone"
    """How networks learn that play no game."""
    HORIZON = "horizon"
    """How many iterations there are: read where a schedule goes by it."""
    FINE_TUNING = "fine_tuning"
    """What chat models learn from, and how."""
    CONFIGURATION = "configuration"
    """What a library's configuration is composed of, which counts in its place."""
    TESTS = "tests"
    """How networks are tested."""
    CHAT_TESTS = "chat_tests"
    """How chat models are tested."""
    REPORTS = "reports"
    """What is written about rollouts."""
    ORDER = "order"
    """Which stages there are: of Ratchet's own trainers, no stage itself reads it."""
    NOTHING = "nothing"
    """No stage's result depends on it."""


AGENT = (Purpose.NETWORKS, Purpose.PRETRAINING)
"""What a parameter of an agent's network is read for."""
SCENARIO = (Purpose.DATA, Purpose.GAME)
"""What a scenario's parameter is read for."""
EVERYTHING = frozenset(Purpose) - {Purpose.NOTHING}
"""What a field is read for that says nothing, and what a stage reads of which nothing is known."""


@cache
def declared_purposes(model: type[BaseModel]) -> dict[str, frozenset[Purpose]]:
    """Return what each field of a model says that it is read for; nothing where it says nothing.

    What a class says for its fields holds for those that it defines, not for those that a class
    derived from it adds.
    """
    found = {}
    for name, field in model.model_fields.items():
        own = [item for item in field.metadata if isinstance(item, Purpose)]
        owner = next(base for base in model.__mro__ if name in get_annotations(base))
        found[name] = frozenset(own or vars(owner).get("_read_for", ()))
    return found
