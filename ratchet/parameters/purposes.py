"""Purposes of parameters, declared at their fields; stage keys include the parameters read.

A field declares its purposes in its annotation, ``Annotated[int, Purpose.TESTS]``; a class declares
those of its other fields, ``class Section(SubParameters, read_for=Purpose.LEARNING)``. Each family
of trainers maps its stages to purposes (:mod:`trainers.stage_parameters`). Does not import torch.
"""

from __future__ import annotations

from enum import Enum
from functools import cache
from inspect import get_annotations

from pydantic import BaseModel


class Purpose(Enum):
    """Purposes for which stages read parameters."""

    DATA = "data"
    """The datapoints."""
    GAME = "game"
    """The game and its players: every stage except pretraining and waiting."""
    NETWORKS = "networks"
    """Network architectures and how networks act; not read for chat models."""
    ROLLOUTS = "rollouts"
    """The number of rollouts."""
    SPEECH = "speech"
    """How chat models generate text."""
    BRANCHES = "branches"
    """Differences between training rollouts and test rollouts."""
    NORMALIZATION = "normalization"
    """Normalisation of observations, fitted once before training."""
    PRETRAINING = "pretraining"
    """Pretraining of a body before training in the game."""
    IMITATION = "imitation"
    """Imitation of other agents before training in the game."""
    LEARNING = "learning"
    """Training of networks."""
    CRITIC = "critic"
    """Training of a critic, if any."""
    LEARNING_ALONE = "learning_alone"
    """Training of networks outside a game."""
    HORIZON = "horizon"
    """The number of iterations, read if a schedule depends on it."""
    FINE_TUNING = "fine_tuning"
    """Fine-tuning of chat models and its data."""
    CONFIGURATION = "configuration"
    """Parts from which a library's configuration is composed; keys include the result instead."""
    TESTS = "tests"
    """Tests of networks."""
    CHAT_TESTS = "chat_tests"
    """Tests of chat models."""
    REPORTS = "reports"
    """Files written about rollouts."""
    ORDER = "order"
    """The sequence of stages; no stage of Ratchet's trainers reads it."""
    NOTHING = "nothing"
    """Does not affect any stage's result."""


AGENT = (Purpose.NETWORKS, Purpose.PRETRAINING)
"""Purposes of a parameter of an agent's network."""
SCENARIO = (Purpose.DATA, Purpose.GAME)
"""Purposes of a scenario's parameter."""
EVERYTHING = frozenset(Purpose) - {Purpose.NOTHING}
"""Purposes of a field that declares none, and of a stage whose reads are unknown."""


@cache
def declared_purposes(model: type[BaseModel]) -> dict[str, frozenset[Purpose]]:
    """Return the declared purposes of each field of a model; empty if it declares none.

    The purposes of a class apply to the fields that it defines, not to those that a derived class
    adds.
    """
    purposes = {}
    for name, field in model.model_fields.items():
        field_purposes = [item for item in field.metadata if isinstance(item, Purpose)]
        owner = next(base for base in model.__mro__ if name in get_annotations(base))
        purposes[name] = frozenset(field_purposes or vars(owner).get("_read_for", ()))
    return purposes
