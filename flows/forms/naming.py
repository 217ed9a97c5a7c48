"""What a deployed flow run is called: what it runs, or what its user has typed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast
from uuid import UUID

from coolname.data import config as word_lists  # of which Prefect invents names
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

if TYPE_CHECKING:
    from ratchet.parameters.hyper_parameters import HyperParameters

_LONGEST = 100
_GREEK = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|omicron|pi|rho|sigma"
    "|tau|upsilon|phi|chi|psi|omega"
)
_LIKE_A_STAR = re.compile(rf"(?:{_GREEK})\d*-[a-z]+(?:-[a-z]+)*")
"""What the UI writes into the empty field of a name, such as "nu4-wilson"."""


def describe(file: str, changes: Iterable[str], verb: str = "") -> str:
    """Say what runs, such as "demo seed=3" or "sweep demo seed=0..4"; settings change nothing."""
    deciding = (change for change in changes if not change.startswith("settings."))
    told = " ".join([verb, Path(file).stem, *deciding]).strip()
    return told if len(told) <= _LONGEST else f"{told[: _LONGEST - 1]}…"


def chosen_name(given: str, told: str) -> str:
    """Return a flow run's name: what was typed, unless it was invented.

    What the UI has invented cannot be told from what somebody has typed for certain: it stays,
    behind what runs.
    """
    words = given.split("-")
    if len(words) == 2 and _invented_words().issuperset(words):
        return told
    if _LIKE_A_STAR.fullmatch(given):
        return f"{told} ({given})"
    return given


async def name_flow_run(told: str, tags: Sequence[str]) -> None:
    """Give the flow run that is running its name and its tags."""
    run_id, given = flow_run.get_id(), str(flow_run.get_name())
    if run_id is None:
        return
    name = chosen_name(given, told)
    known = list(flow_run.get_tags())
    every = [*known, *(tag for tag in tags if tag not in known)]
    if name != given or every != known:
        async with get_client() as client:
            await client.update_flow_run(UUID(run_id), name=name, tags=every)


def tags_of(name: str, hyper_params: HyperParameters, *others: str) -> list[str]:
    """Return the tags of a run: its experiment, scenario, trainer and protocol, and others."""
    return [
        f"experiment:{name}",
        f"scenario:{hyper_params.scenario}",
        f"trainer:{hyper_params.trainer_name}",
        f"protocol:{hyper_params.interaction_protocol}",
        *others,
    ]


@cache
def _invented_words() -> frozenset[str]:
    lists = cast("dict[str, dict[str, list[str]]]", word_lists)
    return frozenset(word for each in lists.values() for word in each.get("words", ()))
