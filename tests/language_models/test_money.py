"""Usage, prices, budgets and estimates agree with manual sums."""

from __future__ import annotations

import json

import pytest

from ratchet.errors import BudgetExceededError, ParameterError, PricingError
from ratchet.language_models.budget_reservations import BudgetReservation
from ratchet.language_models.estimates import SUPERVISOR_TOKENS, estimate_experiment
from ratchet.language_models.fine_tune_jobs import FineTuneIntent, FineTuneJob
from ratchet.language_models.ledger import Charge, Ledger
from ratchet.language_models.pricing import Budget, ModelPrice, PriceTable
from ratchet.language_models.types import Completion
from ratchet.language_models.usage import UsageMeter
from ratchet.parameters import ExperimentSettings, HyperParameters
from trainers.text.expert_iteration import PureTextEiTrainer
from trainers.text.malt import PureTextMaltTrainer


def completion(prompt, out):
    return Completion("x", "stop", prompt, out, "m")


def parameters(trainer="pure_text_ei", **sections):
    return HyperParameters(
        **{
            "scenario": "code_validation",
            "trainer": trainer,
            "dataset": "generated",
            "nip_protocol": {"max_message_rounds": 3},
            "rl": {"num_iterations": 2, "rollouts_per_iteration": 10},
            "agents": {
                "_default": {
                    "model_name": "gpt-4o-mini",
                    "base_url": None,
                    "max_tokens_per_message": 100,
                    "fine_tuning": {"n_epochs": 2},
                }
            },
            **sections,
        }
    )


def test_usage_adds_up_by_stage_agent_and_model_and_survives_json():
    price = ModelPrice(1.0, 10.0, 100.0)
    meter = UsageMeter("sample_rollouts")
    meter.record_call("prover", "a", completion(100, 10), price)
    meter.record_call("prover", "a", completion(200, 20), price)
    meter.record_call("verifier", "b", completion(1, 1), None)
    other = UsageMeter("await_fine_tune_jobs")
    other.record_training("prover", "a", 1000, price)
    for row in other.rows():
        meter.add(row)
    assert [(r.stage, r.agent, r.model, r.calls) for r in meter.rows()] == [
        ("await_fine_tune_jobs", "prover", "a", 0),
        ("sample_rollouts", "prover", "a", 2),
        ("sample_rollouts", "verifier", "b", 1),
    ]
    assert meter.cost == pytest.approx((300 * 1 + 30 * 10 + 1000 * 100) / 1e6)
    assert meter.unpriced_models == ["b"]
    assert (meter.total.calls, meter.total.prompt_tokens, meter.total.training_tokens) == (
        3,
        301,
        1000,
    )
    again = UsageMeter.from_table(json.loads(json.dumps(meter.to_table())))
    assert again.rows() == meter.rows()


def test_prices_of_dated_fine_tuned_custom_and_unknown_models(tmp_path, monkeypatch):
    table = PriceTable.load()
    base = table.find("gpt-4o-mini")
    assert base is not None
    assert table.find("gpt-4o-mini-2024-07-18") == base
    assert table.find("gpt-4o") != base
    tuned = table.find("ft:gpt-4o-mini-2024-07-18:lab::abc")
    assert tuned is not None
    assert tuned.input > base.input
    assert table.find("mystery") is None
    assert table.find("gpt-4o-mini-audio") is None, "a name with a suffix is another model"
    assert table.find("gpt-4o", embedded=True) == ModelPrice(0, 0, 0)
    own = tmp_path / "prices.yaml"
    own.write_text("models:\n  mystery: {input: 1, output: 2}\n  gpt-4o: {input: 9, output: 9}\n")
    for loaded in (PriceTable.load(own), _from_environment(monkeypatch, own)):
        assert loaded.find("mystery") == loaded.find("ft:mystery:lab") == ModelPrice(1, 2)
        assert loaded.find("gpt-4o") == ModelPrice(9, 9)
        assert loaded.find("gpt-4o-mini") == base
    dated = PriceTable({"m": ModelPrice(1, 1), "m-2024-05": ModelPrice(2, 2)}, {})
    assert dated.find("m-2024-05") == ModelPrice(2, 2), "the longest name that fits"


def _from_environment(monkeypatch, file):
    monkeypatch.setenv("RATCHET_PRICES", str(file))
    return PriceTable.load()


@pytest.mark.parametrize(
    "text",
    [
        "models: 3",
        "other: {}",
        "models: {a: {input: 1}}",
        "models: {a: {input: -1, output: 1}}",
        "models: {a: {input: x, output: 1}}",
        "models: {a: {input: 1, output: 1, extra: 2}}",
        "- 1",
    ],
)
def test_a_bad_price_table_is_an_error(tmp_path, text):
    file = tmp_path / "prices.yaml"
    file.write_text(text)
    with pytest.raises(PricingError, match=r"prices\.yaml"):
        PriceTable.load(file)


def test_a_missing_price_table_is_an_error(tmp_path):
    with pytest.raises(PricingError, match="cannot be read"):
        PriceTable.load(tmp_path / "nowhere.yaml")


def test_a_budget_says_what_was_spent_and_what_to_do():
    Budget(None).check(1e9)
    Budget(5.0).check(5.0)
    with pytest.raises(BudgetExceededError, match=r"5\.5000 spent.*at most 5\.0000.*budget"):
        Budget(5.0).check(5.5)
    with pytest.raises(BudgetExceededError, match=r"up to 2\.0000 would come next"):
        Budget(5.0).check(4.0, planned=2.0)


def test_an_estimate_of_a_game_is_the_sum_made_by_hand():
    """Three rounds of nip: verifier, prover, verifier; 50 + earlier messages, 100 per message."""
    estimate = estimate_experiment(parameters(), PureTextEiTrainer, 80, 20, problem_tokens=50)
    stages = [(s.stage, s.iteration, s.calls) for s in estimate.stages]
    assert stages == [
        ("sample_rollouts", 0, 30),
        ("await_fine_tune_jobs", 0, 0),
        ("sample_rollouts", 1, 30),
        ("test", -1, 60),
    ]
    first, training, second, _ = estimate.stages
    assert first.prompt_tokens == 10 * (50 + 150 + 250)
    assert first.completion_tokens == 10 * 300
    assert first.cost == pytest.approx((4500 * 0.15 + 3000 * 0.60) / 1e6)
    assert second.cost == pytest.approx((4500 * 0.30 + 3000 * 1.20) / 1e6)  # fine-tuned by then
    assert training.training_tokens == 2 * 10 * (50 + 300) * 2  # agents, games, tokens, epochs
    assert estimate.total.calls == 120
    assert estimate.total.most_calls == 4 * 120, "each reply is requested again up to 3 times"
    assert first.most_cost == pytest.approx(4 * first.cost)
    assert training.most_cost == training.cost
    once = parameters().replace({"agents.prover.num_invalid_generation_retries": 2})
    total = estimate_experiment(once, PureTextEiTrainer, 80, 20, problem_tokens=50).total
    assert total.most_calls == 40 * 3 + 80 * 4, "each agent has separate retries"
    assert estimate.total.cost == pytest.approx(sum(s.cost for s in estimate.stages))


@pytest.mark.parametrize(
    ("use", "rounds"), [("none", 0), ("first", 1), ("all_but_first", 2), ("always", 3)]
)
def test_a_supervisor_is_estimated_in_the_rounds_in_which_it_speaks(use, rounds):
    supervised = parameters().replace({"agents._default.use_supervisor_message": use})
    first, *_ = estimate_experiment(supervised, PureTextEiTrainer, 80, 20, problem_tokens=50).stages
    assert first.prompt_tokens == 10 * (50 + 150 + 250 + rounds * SUPERVISOR_TOKENS)


def test_trees_tests_and_frozen_agents_are_counted():
    malt = parameters("pure_text_malt", text_rl={"test_scheme": "all"})
    stages = {
        (s.stage, s.iteration): s
        for s in estimate_experiment(malt, PureTextMaltTrainer, 80, 20).stages
    }
    assert stages["sample_rollouts", 0].calls == 10 * (2 + 4 + 8)
    assert stages["test_during_training", 1].calls == 60
    frozen = parameters().replace({"agents._default.freeze_agent": True})
    total = estimate_experiment(frozen, PureTextEiTrainer, 80, 20).total
    assert total.training_tokens == 0


def test_a_custom_protocol_is_found_beside_its_experiment(tmp_path):
    (tmp_path / "short.py").write_text(
        "from ratchet.protocols.adp import AdpProtocolHandler\n"
        "class Short(AdpProtocolHandler):\n    pass\n"
    )
    custom = parameters(interaction_protocol="short.py:Short")
    found = estimate_experiment(custom, PureTextEiTrainer, 80, 20, base_dir=tmp_path)
    built_in = parameters(interaction_protocol="adp")
    assert found == estimate_experiment(built_in, PureTextEiTrainer, 80, 20)


def test_what_a_trainer_samples_counts_whatever_its_name():
    class Bushy(PureTextMaltTrainer):
        @classmethod
        def responses_per_step(cls, hyper_params):
            return 3

    first, training, *_ = estimate_experiment(parameters(), Bushy, 80, 20, problem_tokens=50).stages
    assert first.calls == 10 * (3 + 9 + 27)
    assert training.training_tokens == 2 * 10 * (1 + 3 + 9) * (50 + 300) * 2


def test_the_embedded_service_is_free_and_the_unknown_is_named():
    free = parameters().replace({"agents._default.base_url": "embedded"})
    assert estimate_experiment(free, PureTextEiTrainer, 80, 20).total.cost == 0
    unknown = parameters().replace({"agents._default.model_name": "mystery"})
    assert estimate_experiment(unknown, PureTextEiTrainer, 80, 20).total.unpriced_models == (
        "mystery",
    )


def test_a_limit_per_minute_makes_it_last():
    limited = ExperimentSettings(requests_per_minute=1)
    first, *_ = estimate_experiment(parameters(), PureTextEiTrainer, 80, 20, limited).stages
    assert first.seconds == 30 * 60


def test_only_chat_models_are_estimated():
    graphs = HyperParameters(scenario="graph_isomorphism", trainer="vanilla_ppo", dataset="er1000")
    with pytest.raises(ParameterError, match="chat model"):
        estimate_experiment(graphs, PureTextEiTrainer, 10, 10)


def intent(epochs, digest="0"):
    return FineTuneIntent("m", "supervised", digest, {"n_epochs": epochs})


def test_jobs_are_refused_before_they_are_made_where_together_they_cost_too_much():
    prices = PriceTable({"m": ModelPrice(0, 0, training=2.0)}, {})
    ledger = Ledger(Budget(7.0))
    allowance = BudgetReservation(ledger, prices)
    for _ in range(2):  # repeated after a kill: still one job
        allowance.reserve(intent(2), letters=4_000_000)  # 1 M tokens twice: 4
    allowance.reserve(intent(5), letters=4_000_000, embedded=True)
    with pytest.raises(BudgetExceededError, match=r"4\.0000 spent.* and up to 4\.0000"):
        allowance.reserve(intent(2, "1"), letters=4_000_000)
    allowance.reserve(intent(1), letters=4_000_000)
    allowance.release(intent(1))  # refused by the service
    allowance.settle(intent(2), FineTuneJob("a", "succeeded", "n", trained_tokens=1_000_000))
    assert ledger.billed == Charge(2.0, 2.0)
    for job in (FineTuneJob("b", "failed"), FineTuneJob("c", "cancelled")):
        allowance.reserve(intent(1), letters=4_000_000)
        allowance.settle(intent(1), job)
    assert ledger.billed == Charge(2.0, 4.0), "what was cancelled may have been billed"


def test_what_is_said_of_sampling_holds_until_a_class_samples_in_its_own_way():
    class Custom(PureTextMaltTrainer):
        async def _sample_one(self, environment, iteration, planned, calls): ...

    class Said(Custom):
        @classmethod
        def responses_per_step(cls, hyper_params):
            return 3

    known = [k.declares_sample_count() for k in (PureTextEiTrainer, PureTextMaltTrainer, Said)]
    assert known == [True, True, True]
    assert not Custom.declares_sample_count()
    total = estimate_experiment(parameters(), Custom, 80, 20).total
    assert (total.is_known, total.calls) == (False, 0)
