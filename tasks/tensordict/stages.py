"""What does each stage of an arm of networks, by the stage's name. Imports Prefect."""

from __future__ import annotations

from typing import Any

from tasks.build_scenario import build_scenario
from tasks.stages.decorator import Stage
from tasks.tensordict.imitate import imitate, imitated_state
from tasks.tensordict.initial_state import initial_state, pretrained_state
from tasks.tensordict.phase_state import phase_state
from tasks.tensordict.pretrain import pretrain
from tasks.tensordict.rollouts import rollouts
from tasks.tensordict.run_trainer import run_trainer
from tasks.tensordict.test import test
from tasks.tensordict.train import train

STAGES: dict[str, Stage[Any]] = {
    "build_scenario": build_scenario,
    "initial_state": initial_state,
    "pretrain": pretrain,
    "pretrained_state": pretrained_state,
    "imitate": imitate,
    "imitated_state": imitated_state,
    "phase_state": phase_state,
    "rollouts": rollouts,
    "train": train,
    "test": test,
    "run_trainer": run_trainer,
}
