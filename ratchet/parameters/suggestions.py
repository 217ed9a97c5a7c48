"""What to say of a parameter that nothing knows: what was probably meant, where it stands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import BaseModel

from ratchet.errors import nearest
from ratchet.parameters.base import AGENT_MODELS, SECTIONS
from ratchet.parameters.without_counterpart import advice_about


def suggest(path: str, known: Iterable[str]) -> str:
    """Return what to do about an unknown parameter of a section that has the ``known`` ones."""
    name = path.rpartition(".")[2]
    close = nearest(name, known)
    is_close = close.startswith(" Did you mean")
    other = "" if path.startswith("agents.") else elsewhere(name)  # agents have no other section
    return advice_about(path) or (close if is_close else other or close)


def suggest_at_top(
    name: str, known: Iterable[str], others: Mapping[str, type[BaseModel]] | None = None
) -> str:
    """Return what to do about an unknown parameter at the top of an experiment file.

    ``others`` are sections that are no hyper-parameters.
    """
    return advice_about(name) or elsewhere(name, others) or nearest(name, known)


def elsewhere(name: str, others: Mapping[str, type[BaseModel]] | None = None) -> str:
    """Return ``" Did you mean rl.lr?"`` with all sections that have a parameter of that name."""
    sections = {section.name: section.model for section in SECTIONS.values()}
    places = [
        f"{section}.{name}"
        for section, model in {**sections, **(others or {})}.items()
        if name in model.model_fields
    ]
    if any(name in model.model_fields for model in AGENT_MODELS.values()):
        places.append(f"agents._default.{name}")
    if not places:
        return ""
    *others_there, last = places
    return f" Did you mean {', '.join(others_there) + ' or ' if others_there else ''}{last}?"
