"""The members of a sweep: whole experiments whose ids are those that ``ratchet run`` gives them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.runs.identity import (
    ArmChanges,
    Arms,
    read_arms,
    stable_run_id,
    with_earlier_agents,
)
from flows.sweeps.grid import describe_point, grid_points
from ratchet.errors import RatchetError
from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.keys import canonical_json
from trainers.combinations import check_combination


@dataclass(frozen=True)
class SweepMember:
    """One experiment of a sweep: its run, what it changes, and its complete arms."""

    run_id: str
    changes: dict[str, Any]
    arms: Arms

    @property
    def label(self) -> str:
        """What it changes, as on the command line."""
        return describe_point(self.changes) or self.run_id


def sweep_members(
    base: HyperParameters,
    grid: Mapping[str, Sequence[Any]],
    arms: ArmChanges | None,
    *,
    name: str,
    settings: ExperimentSettings,
) -> list[SweepMember]:
    """Make the experiments of a grid; a combination that makes no sense is refused here.

    Parameters
    ----------
    base
        What all have in common.
    grid
        Dotted path → values.
    arms
        Further experiments of each member's run, as changes.
    name
        The experiment's name, from which run ids are made.
    settings
        Of these ``base_dir`` and where earlier runs lie are read.

    Raises
    ------
    ParameterError
        If a combination is refused, saying which.
    """
    members, folder = [], settings.base_dir
    for changes in grid_points(grid):
        try:
            chosen = read_arms(base.replace(changes, folder), arms, folder)
            complete = with_earlier_agents(chosen, settings)
            for params in complete.values():
                check_combination(params, folder)
        except RatchetError as error:
            point = describe_point(changes)
            raise type(error)(f"sweep: {point}:\n{error}" if point else str(error)) from error
        members.append(SweepMember(stable_run_id(name, complete), changes, complete))
    return members


def sweep_id(name: str, members: Sequence[SweepMember]) -> str:
    """Return the id of a sweep: the same for the same members, in whatever order."""
    digest = hashlib.sha256(canonical_json(sorted(member.run_id for member in members)))
    stem = members[0].run_id.rpartition("-")[0] if members else name
    return f"{stem}-sweep-{digest.hexdigest()[:8]}"
