"""Computing removed states of language models again, with the same bytes."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from flows.runs.removed_states import removed_chain, states_of
from ratchet.errors import ParameterError
from ratchet.store.removed_files import files_put_back, remove_files
from ratchet.tracking.stage_kinds import TRAIN
from tasks.language.keys import LanguageArmKeys
from tasks.stages.families import open_session, stage_functions

if TYPE_CHECKING:
    from flows.runs.resolve import ResolvedExperiment


def restore_state(experiment: ResolvedExperiment, iteration: int) -> list[str]:
    """Compute the removed states of a run after an iteration again; return the arms' names.

    Each arm's stages from the nearest stored state on are computed again, and their tensors are
    stored if they have the same bytes as those removed; only the last ones stay.

    Raises
    ------
    ParameterError
        If no arm has removed the state after this many iterations.
    StoreError
        If a state's bytes differ from the removed one's.
    """
    store, restored = experiment.store, []
    for keys in experiment.keys:
        states = states_of(store, experiment.records, keys.arm)
        state = states.get(iteration)
        if not isinstance(keys, LanguageArmKeys) or state is None or not state.removed:
            continue
        chain = removed_chain(states.get, state)
        work = stage_functions(keys)[TRAIN.name].work
        with closing(open_session(keys, experiment.settings, store)) as session:
            for index, manifest in enumerate(chain):
                call = keys.train(manifest.start_iteration, manifest.iteration)
                with files_put_back(store, manifest) as folder:
                    work(call, folder, session)
                if index:
                    remove_files(store, chain[index - 1].key, chain[index - 1].removed)
        restored.append(keys.arm)
    if not restored:
        raise ParameterError(
            f"restore: got {iteration}, but run {experiment.run_id} has removed no state after"
            f" {iteration} iterations; nothing to do."
        )
    return restored
