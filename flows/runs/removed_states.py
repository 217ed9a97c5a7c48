"""States of language models whose tensors were removed: which may go, and who needs them.

Only states of models that are trained here are removed: restoring one needs no paid service.
Their stages stay finished.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flows.runs.garbage_collection import check_accessible
from flows.runs.references import References
from ratchet.errors import CheckPointNotFoundError, DataError, RunStateError
from ratchet.store.garbage_collection import store_users
from ratchet.store.removed_files import remove_files
from ratchet.tracking.run_folder import find_run
from ratchet.tracking.stage_kinds import TRAIN
from tasks.language.keys import LanguageArmKeys
from tasks.stages.files import STATE_FOLDER
from tasks.stages.sequence import StoredStageLayout, flatten_steps

if TYPE_CHECKING:
    from ratchet.parameters.settings import ExperimentSettings
    from ratchet.store.manifest import Manifest
    from ratchet.store.store import StageStore
    from ratchet.tracking.manifest import StageRecord
    from ratchet.tracking.run_folder import RunFolder
    from tasks.stages.calls import StageCall
    from tasks.stages.families import AnyKeys

logger = logging.getLogger(__name__)

_LATEST = 2
"""States that always stay: the newest, and the one that it can be computed again from."""


def removable_states(
    keys: AnyKeys, iterations: Iterable[int], settings: ExperimentSettings
) -> list[int]:
    """Return those of an arm's iterations whose states the settings allow to remove."""
    if settings.state_retention == "all" or not isinstance(keys, LanguageArmKeys):
        return []
    if keys.trainer_class.traits.is_remote:
        return []
    period, of_phases = settings.checkpoint_period, keys.boundaries
    earlier = [each for each in sorted(set(iterations))[:-_LATEST] if each not in of_phases]
    return [each for each in earlier if period is None or each % period]


class StateRetention:
    """Removes states of a run while it trains, according to ``settings.state_retention``.

    States that another run or arm uses, or that runs may use which can't be seen, stay.
    """

    def __init__(
        self,
        folder: RunFolder,
        store: StageStore,
        settings: ExperimentSettings,
        arms: Sequence[AnyKeys],
    ) -> None:
        self._folder, self._store, self._settings = folder, store, settings
        self._arms = {keys.arm: keys for keys in arms if isinstance(keys, LanguageArmKeys)}
        self._finished: set[str] = set()
        self._references: tuple[set[Path], References] | None = None
        self._reported: set[str] = set()

    def stage_finished(self, call: StageCall) -> None:
        """Remove the states that are no longer needed after a recorded stage."""
        if call.kind != TRAIN or call.arm not in self._arms:
            return
        states = {
            record.iteration: record.key
            for record in self._folder.manifest.stages
            if (record.arm, record.stage) == (call.arm, TRAIN.name)
            and record.iteration <= call.iteration
        }
        iterations = removable_states(self._arms[call.arm], states, self._settings)
        candidates = [i for i in iterations if states[i] not in self._finished]
        if not candidates:
            return
        try:
            needed = self._needed_by_others()
        except (DataError, RunStateError) as error:
            if str(error) not in self._reported:
                self._reported.add(str(error))
                logger.warning("No state is removed, since other runs may need it. %s", error)
            return
        for iteration in candidates:
            key = states[iteration]
            if key not in needed and not self._is_shared(call.arm, iteration, key):
                self._remove(key)

    def _needed_by_others(self) -> frozenset[str]:
        """Return the keys of the stages that other runs need."""
        users = store_users(self._store)
        check_accessible(users)
        folders = {self._folder.path.parent, *(Path(user.runs) for user in users)}
        if self._references is None or self._references[0] != folders:
            references = References(self._store, folders, except_run=self._folder.path)
            self._references = folders, references
        return self._references[1].needed()

    def _is_shared(self, arm: str, iteration: int, key: str) -> bool:
        return any(
            iteration <= keys.num_iterations and keys.state_key(iteration) == key
            for name, keys in self._arms.items()
            if name != arm
        )

    def _remove(self, key: str) -> None:
        manifest = self._store.peek(key)
        if manifest is None:
            return
        prefix, suffix = f"{STATE_FOLDER}/", ".safetensors"
        names = [n for n in manifest.files if n.startswith(prefix) and n.endswith(suffix)]
        if remove_files(self._store, key, names):
            self._finished.add(key)


def check_states(store: StageStore, settings: ExperimentSettings, arms: Iterable[AnyKeys]) -> None:
    """Raise CheckPointNotFoundError if missing stages of a run read removed states."""
    layout = StoredStageLayout(store, settings)
    for keys in arms:
        if isinstance(keys, LanguageArmKeys):
            for call in flatten_steps(keys.stages(layout)):
                if store.peek(call.key, allow_stale=True) is None:
                    check_state(store, keys, call)


def check_state(store: StageStore, keys: AnyKeys, call: StageCall) -> None:
    """Raise CheckPointNotFoundError if a stage to compute reads a removed state."""
    if not isinstance(keys, LanguageArmKeys):
        return
    is_train = call.kind == TRAIN
    read = [keys.state_key(call.start_iteration)] if is_train else _states_read(call)
    for key in read:
        state = store.peek(key, allow_stale=True)
        if state is None or not state.removed:
            continue
        chain = removed_chain(lambda iteration: store.peek(keys.state_key(iteration)), state)
        raise CheckPointNotFoundError(f"{call.label} reads {_describe(chain, keys.arm)}")


def _states_read(call: StageCall) -> list[str]:
    """Return the keys of the states that a stage reads, of a pool's members too."""
    return [
        str(key)
        for name, key in call.inputs.items()
        if name in ("state", "first") or name.startswith("pool.")
    ]


def describe_removed(store: StageStore, records: Sequence[StageRecord]) -> list[str]:
    """Describe the removed states among a run's stages, a line for each arm that has some."""
    lines = []
    for arm in dict.fromkeys(record.arm for record in records):
        states = states_of(store, records, arm)
        removed = [iteration for iteration in sorted(states) if states[iteration].removed]
        if removed:
            chain = removed_chain(states.get, states[removed[-1]])
            lines.append(
                f"{len(removed)} states were removed. Among them is {_describe(chain, arm)}"
            )
    return lines


def untested_states(
    store: StageStore, settings: ExperimentSettings, arms: Iterable[AnyKeys]
) -> list[str]:
    """Describe the removed states of the runs that an experiment tests again."""
    texts = []
    for keys in arms:
        run_id = keys.hyper_params.base_run.run_id
        if keys.only_tests and run_id is not None:
            tested = find_run(settings.runs, run_id).manifest.stages
            records = [record for record in tested if record.arm == keys.arm]
            texts += [f"Not tested: {t}" for t in describe_removed(store, records)]
    return texts


def states_of(store: StageStore, records: Iterable[StageRecord], arm: str) -> dict[int, Manifest]:
    """Return the stages of an arm with the states after training, by iteration."""
    return {
        record.iteration: manifest
        for record in records
        if (record.arm, record.stage) == (arm, TRAIN.name)
        and (manifest := store.peek(record.key)) is not None
    }


def _describe(chain: Sequence[Manifest], arm: str) -> str:
    """Describe the last of the removed states that must be computed again together."""
    start, state = chain[0].start_iteration, chain[-1]
    return (
        f"the state of arm {arm!r} after {state.iteration} iterations, which was removed to free"
        f" space. Computing it again from the stored state after {start} takes"
        f" {state.iteration - start} iterations: `ratchet restore {state.run_id or 'RUN'}"
        f" {state.iteration}`."
    )


def removed_chain(state_after: Callable[[int], Manifest | None], last: Manifest) -> list[Manifest]:
    """Return the removed states from the nearest stored one on, up to a removed one, in order."""
    chain, before = [last], state_after(last.start_iteration)
    while before is not None and before.removed:
        chain.append(before)
        before = state_after(before.start_iteration)
    return chain[::-1]
