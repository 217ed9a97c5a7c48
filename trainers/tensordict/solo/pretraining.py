"""Pretraining of an agent's body before reinforcement learning.

The body's inputs are empty histories, normalised as in the game; without normalisation an empty
history is zero, and the weights that read it keep their initial values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ratchet.parameters.test_groups import test_groups
from ratchet.seeding import derive_seed, seeded_globals
from trainers.progress import report_iterations
from trainers.results import Metrics, PretrainResult, Table
from trainers.tensordict.solo.learning import SoloLearner
from trainers.tensordict.states.snapshots import agent_tensors, copy_tensors
from trainers.tensordict.states.state import check_same_tensors, clone_tensors
from trainers.tensordict.testing import complete_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ratchet.agents.actor_critic import ActorCritic
    from trainers.tensordict.base import TensorDictTrainer

STAGE = "pretrain"
PARTS = ("body", "solo_head")


def pretrain_agent(trainer: TensorDictTrainer, agent_name: str) -> PretrainResult:
    """Train one agent's body and solo head, in place.

    Returns weights, loss and accuracy of each epoch, and predictions for the test set.
    """
    hyper_params, agents = trainer.hyper_params, trainer.combined_agents
    learner = SoloLearner(agents, [agent_name], hyper_params, stage=STAGE)
    test_run = trainer.settings.test_run
    table: Table = {}

    def run_epoch(epoch: int) -> Metrics:
        nonlocal table
        with seeded_globals(derive_seed(hyper_params.seed, STAGE, epoch, "globals", agent_name)):
            learned = learner.run_epoch(epoch, trainer.train_environment, 1 if test_run else None)
            tested, table = learner.predict(trainer.test_environment)
        return learned | tested

    epochs = range(1 if test_run else hyper_params.solo_agent.num_epochs)
    metrics = report_iterations(f"Pretraining {agent_name}", epochs, run_epoch, unit="epoch")
    groups = test_groups(hyper_params)
    complete_table(table, trainer.test_environment.dataset, [agent_name], groups)
    parts = _parts(agent_tensors(agents)[agent_name], PARTS)
    return PretrainResult(clone_tensors(parts), metrics, table)


def load_pretrained(agents: ActorCritic, agent_name: str, weights: Mapping[str, Tensor]) -> None:
    """Load a pretrained body and solo head into an agent, and the body into its value body if any.

    Raises StateError if names or shapes differ.
    """
    live = agent_tensors(agents)[agent_name]
    mine = _parts(live, PARTS)
    check_same_tensors(weights, mine, f"pretrained agent {agent_name!r}")
    copy_tensors(mine, weights)
    value_body = _parts(live, ("value_body",))
    copy_tensors(
        value_body, {f"value_{name}": weights[name] for name in _parts(weights, ("body",))}
    )


def _parts(tensors: Mapping[str, Tensor], parts: tuple[str, ...]) -> dict[str, Tensor]:
    return {name: t for name, t in tensors.items() if name.partition(".")[0] in parts}
