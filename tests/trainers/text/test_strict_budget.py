"""A budget is never exceeded by a service's charges, regardless of the responses."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ratchet.errors import BudgetExceededError, RolloutError
from ratchet.language_models.chat import ChatClient
from ratchet.language_models.retrying import RetryPolicy
from ratchet.scenarios.pure_text.agents import whole_agent

sys.path.insert(0, str(Path(__file__).parents[2] / "language_models"))

from losing_service import PRICES, LosingService


@pytest.mark.parametrize(("share", "workers"), [(0.3, 1), (0.6, 16)])
def test_what_was_billed_is_within_the_budget_also_after_a_resume(
    tiny_text, tmp_path, monkeypatch, share, workers
):
    """Stopped at three budgets and resumed after each, until it is done."""

    def client(endpoint, *limits):
        return ChatClient(endpoint, RetryPolicy(max_attempts=4, first_delay_seconds=0.001))

    monkeypatch.setattr(whole_agent, "shared_chat_client", client)
    (tmp_path / "prices.yaml").write_text(PRICES)
    service = LosingService(share, seed=workers)
    agent = {"base_url": service.url, "model_name": "tiny", "freeze_agent": True}
    hyper_params = tiny_text.parameters(
        rl__num_iterations=1,
        rl__rollouts_per_iteration=8,
        **{f"agents___default__{name}": value for name, value in agent.items()},
        agents___default__use_dummy_api=False,
        agents___default__max_tokens_per_message=20,
    )
    ends = []
    for budget in (0.5, 1.0, 1000.0):
        trainer = tiny_text.trainer(
            hyper_params,
            budget=budget,
            prices=str(tmp_path / "prices.yaml"),
            num_rollout_workers=workers,
            request_seconds=0.05,
            home=str(tmp_path),
            run_id="r",
        )
        for _ in range(30):  # as a stage's retries do
            try:
                trainer.train()
                ends.append("done")
            except RolloutError:  # a call failed too often
                continue
            except BudgetExceededError:
                ends.append("budget")
            break
        assert service.billed <= budget
    service.close()
    assert ends[0] == "budget"
    assert ends[-1] == "done"
    assert sum(service.lost.values()) > 0.2 * service.requests
