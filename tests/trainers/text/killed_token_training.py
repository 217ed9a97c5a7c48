"""Train two chat models on tokens under a run's id; optionally kill the process at an operation.

    python killed_token_training.py HOME VERB BEFORE

``VERB`` is the number of the optimizer step, ``-1`` for none; ``BEFORE`` 1 kills before it.
"""

from __future__ import annotations

import os
import signal
import sys

import numpy as np
import tiny_text

from ratchet.language_models.training_service.client import HttpTrainingService
from ratchet.rollouts.tokens import tokens_of
from trainers.text.grpo import PureTextGrpoTrainer

STEP = HttpTrainingService.optim_step


class PaidByTokens(PureTextGrpoTrainer):
    """Rewards tokens for any message: no model with random weights wins a game."""

    def _stage_create_fine_tune_jobs(self, rollouts):
        for row, step, agent in np.argwhere(rollouts["agents", "active"]).tolist():
            tokens = tokens_of(rollouts, row, step, agent).token_ids
            rollouts["agents", "reward"][row, step, agent] = tokens[0] % 3
        super()._stage_create_fine_tune_jobs(rollouts)


def die_at(number, *, before):
    """Kill this process before or behind a step."""
    taken = []

    def step(*args, **kwargs):
        taken.append(number)
        if before and len(taken) == number + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = STEP(*args, **kwargs)
        if len(taken) == number + 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    HttpTrainingService.optim_step = step


def main(home, number, before):
    die_at(int(number), before=bool(int(before)))
    changes = {
        "agents___default__use_dummy_api": False,
        "agents___default__num_invalid_generation_retries": 0,
        "agents___default__max_tokens_per_message": 6,
        "pure_text_grpo__batch_size": 12,
        "pure_text_grpo__lr": 0.01,
        "rl__rollouts_per_iteration": 8,
    }
    hyper_params = tiny_text.parameters(trainer="pure_text_grpo", **changes)
    tiny_text.trainer(hyper_params, found=PaidByTokens, home=home, run_id="r").train()


if __name__ == "__main__":
    main(*sys.argv[1:])
