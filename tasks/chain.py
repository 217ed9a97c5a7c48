"""Find how far training has come: the chain of stored train stages that ends furthest.

The key of a state depends on how many iterations it has, not on how they were cut; the metrics
lie in the links, so that a chain counts only without a gap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.store.manifest import Manifest

if TYPE_CHECKING:
    from ratchet.store.store import StageStore
    from tasks.keys import ArmKeys


def find_chain(store: StageStore, keys: ArmKeys, target: int) -> list[Manifest]:
    """Find the stored links from the initial state to the furthest state up to ``target``.

    Parameters
    ----------
    store
        Where the stages lie.
    keys
        The arm's keys.
    target
        How many iterations are wanted.

    Returns
    -------
    list of Manifest
        In the order of training, each beginning where the one before ends; empty if nothing is
        there to begin with.
    """
    for iteration in range(target, 0, -1):
        links = trace_chain(store, keys, iteration)
        if links is not None:
            return links
    return []


def trace_chain(store: StageStore, keys: ArmKeys, iteration: int) -> list[Manifest] | None:
    """Follow the links from a state back to the initial one; None if one is missing."""
    links: list[Manifest] = []
    while iteration > 0:
        manifest = store.find(keys.state_key(iteration))
        if manifest is None or not manifest.start_iteration < iteration:
            return None
        links.append(manifest)
        iteration = manifest.start_iteration
    return links[::-1]


def next_stop(position: int, target: int, iterations_per_task: int) -> int:
    """Give the end of the next train stage: the next multiple of the task's length, or the end.

    Cutting at multiples makes runs of different lengths share their stages.
    """
    return min((position // iterations_per_task + 1) * iterations_per_task, target)
