"""The stage that keeps the rollouts of one iteration: a sample of what training plays.

What an iteration plays follows from the state at its beginning, so it can be played once more;
training itself leaves nothing but states and metrics behind, whatever the settings ask to keep.
"""

from __future__ import annotations

import json
from pathlib import Path

from ratchet.rollouts.tensor_files import save_rollouts
from ratchet.rollouts.transcripts import save_report_transcripts
from tasks.stages.calls import StageCall
from tasks.stages.decorator import Metrics, stage
from tasks.stages.session import TRANSCRIPTS_FILE
from tasks.tensordict.session import ArmSession

ROLLOUTS_FILE = "rollouts.safetensors"


@stage
def rollouts(call: StageCall, folder: Path, session: ArmSession) -> Metrics:
    """Play the rollouts of iteration ``call.iteration``; write them, and what the report shows."""
    keys = session.keys
    trainer = session.trainer_at(
        keys.beginning_key(call.iteration), keys.phase_from(call.iteration)
    )
    if trainer.has_stopped:
        return []
    played = trainer.sample_rollouts(call.iteration)
    names = list(session.instance.protocol_handler.agent_names)
    about = {"agent_names": json.dumps(names), "iteration": str(call.iteration)}
    save_rollouts(played, folder / ROLLOUTS_FILE, about)
    transcripts = session.instance.train_environment.transcripts(played)
    if transcripts:
        save_report_transcripts(folder / TRANSCRIPTS_FILE, transcripts)
    return []
