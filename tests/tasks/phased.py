"""Minimal experiment with phases, whose stages are executed sequentially without a flow.

Also a script that plays it into a folder, to be killed: `python -m tests.tasks.phased FOLDER`.
"""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Any

from ratchet.parameters.hyper_parameters import HyperParameters
from ratchet.parameters.settings import ExperimentSettings
from ratchet.store.store import StageStore
from tasks.stages.decorator import make_stage
from tasks.stages.driver import run_stages
from tasks.stages.families import stage_functions
from tasks.stages.sequence import StoredStageLayout, flatten_steps
from tasks.tensordict.keys import ArmKeys
from tasks.tensordict.session import ArmSession
from trainers.tensordict.states.state import State

AGENT = {
    "num_gnn_layers": 1,
    "d_gnn": 4,
    "d_gin_mlp": 4,
    "num_heads": 2,
    "num_transformer_layers": 1,
    "d_transformer": 4,
    "d_transformer_mlp": 4,
    "d_node_selector": 4,
    "d_decider": 4,
    "d_value": 4,
}
PHASES: list[dict[str, Any]] = [
    {
        "name": "alone",
        "num_iterations": 3,
        "learners": ["verifier"],
        "partners": {"prover": "hand_made"},
        "max_message_rounds": 3,
        "changes": {"rl.lr": 0.01},
    },
    {
        "name": "answer",
        "num_iterations": 2,
        "learners": ["prover"],
        "changes": {"rl.anneal_lr": True},
    },
    {"name": "joint", "num_iterations": 3, "changes": {"rl": {"lr": 0.0003}}},
]
POOLED: list[dict[str, Any]] = [
    PHASES[0],
    PHASES[1],
    {**PHASES[2], "learners": ["verifier"], "partners": {"prover": {"kind": "pool", "every": 1}}},
]
"""The same phases, except that the prover of the last one is sampled from a pool."""
PARAMETERS: dict[str, Any] = {
    "scenario": "graph_isomorphism",
    "trainer": "vanilla_ppo",
    "dataset": "generated",
    "d_representation": 4,
    "pretrain_agents": True,
    "nip_protocol": {"max_message_rounds": 4},
    "graph_isomorphism": {"num_pairs": 40},
    "rl": {
        "frames_per_batch": 32,
        "minibatch_size": 12,
        "num_epochs": 2,
        "num_normalization_steps": 32,
        "num_test_iterations": 2,
    },
    "solo_agent": {"num_epochs": 1, "batch_size": 8},
    "agents": {"_default": AGENT},
}


def parameters(phases: object = PHASES, **changes: object) -> HyperParameters:
    """Return the parameters, with changes by dotted path (dots written as two underscores)."""
    plain = {path.replace("__", "."): value for path, value in changes.items()}
    data = {**PARAMETERS, "phases": phases} if phases else PARAMETERS
    return HyperParameters(**data).replace(plain)


def keys_of(hyper_params: HyperParameters | None = None) -> ArmKeys:
    """Return the arm's keys."""
    return ArmKeys("main", hyper_params or parameters())


class Played:
    """Arm whose stages are executed in this process."""

    keys_class: type = ArmKeys
    session_class: type = ArmSession
    state_class: type = State

    def __init__(self, folder: Any, hyper_params: HyperParameters, per_task: int = 10) -> None:
        self.settings = ExperimentSettings(
            home=str(folder), iterations_per_task=per_task, progress="none", tracking=False
        )
        self.keys = self.keys_class("main", hyper_params)
        self.store = StageStore(self.settings.store_url)

    def play(self, *, apart: bool = False) -> list[str]:
        """Execute missing stages; with ``apart``, as if each had a separate process."""
        if not apart:
            with closing(self.session_class(self.keys, self.settings, self.store)) as session:
                return [each.call.label for each in run_stages(session) if not each.hit]
        made, functions = [], stage_functions(self.keys)
        for call in flatten_steps(self.keys.stages(StoredStageLayout(self.store, self.settings))):
            with closing(self.session_class(self.keys, self.settings, self.store)) as session:
                if not make_stage(functions[call.stage], call, session).hit:
                    made.append(call.label)
        return made

    def state(self, key: str) -> Any:
        """Read the final state of a stage."""
        return self.state_class.load(self.store.open(key) / "state")

    def after(self, iteration: int) -> Any:
        """Read the state after ``iteration`` iterations."""
        return self.state(self.keys.state_key(iteration))


if __name__ == "__main__":
    Played(sys.argv[1], parameters(POOLED), per_task=1).play()
