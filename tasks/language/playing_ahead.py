"""The stage that plays what is learned from next, in a process of its own. Imports Prefect."""

from __future__ import annotations

from pathlib import Path

from tasks.language.session import LanguageArmSession
from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, waiting_stage
from tasks.stages.session import TRANSCRIPTS_FILE
from trainers.language.rollouts import Rollouts
from trainers.language.state import LanguageState


@waiting_stage
def rollouts(call: StageCall, folder: Path, session: LanguageArmSession) -> Metrics:
    """Play what iteration ``call.iteration`` learns from, with the weights of the one before.

    Where the state that the iteration begins with is stored already, it has them.
    """
    keys, store = session.keys, session.store
    begins = call.iteration
    is_stale = session.fresh and session.is_made_ahead(call)  # it is being made anew meanwhile
    if is_stale or store.find(keys.state_key(begins)) is None:
        begins = max(begins - 1, 0)
    cursor = None
    if begins == 0 and call.iteration == 1:  # states after the first one know the cursor
        first = Rollouts.load(store.open(keys.rollouts(0).key))
        cursor = None if first is None else first.cursor
    state = session.state_folder(keys.state_key(begins))
    wait = session.player.play(
        state,
        call.iteration,
        folder,
        beginning=session.state_folder(LanguageState.initial_of(state)),
        cursor=cursor,
        transcripts=TRANSCRIPTS_FILE,
    )
    wait()
    return []
