"""A reasoning model plays, is fine-tuned and plays again."""

from __future__ import annotations

import json

import numpy as np
import pytest
from micro_model import write_micro_model
from thinking_template import THINKS

from ratchet import ExperimentSettings, HyperParameters
from ratchet.language_models.engines.torch_engine import TorchEngine
from ratchet.rollouts.transcripts import report_transcripts
from ratchet.scenarios import build_scenario_instance
from ratchet.scenarios.code_validation.tiny_model.corpus import verifier_system
from ratchet.scenarios.code_validation.tiny_model.players import draw_exercise
from ratchet.service.jobs.runner import TRAINER
from ratchet.service.training import train as training
from ratchet.service.training.job_folder import TrainingJob
from trainers.registry import trainer_class

SIZE = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 16}
THOUGHT = "<think>\nsame\n</think>\n\n"


def chat(exercise, reply):
    system = {"role": "system", "content": verifier_system(exercise).content}
    return json.dumps({"messages": [system, {"role": "assistant", "content": reply}]}) + "\n"


@pytest.fixture(scope="module")
def service(tmp_path_factory, running_service):
    """A model that reasons in one word if allowed, and then decides at random."""
    home = tmp_path_factory.mktemp("home")
    base = write_micro_model(home / "base", scale=0.1, **SIZE)
    (base / "chat_template.jinja").write_text(THINKS)
    rng = np.random.default_rng(0)
    lines = [
        chat(draw_exercise(rng), f"{thought}Decision: {word}")
        for _ in range(16)
        for thought in ("", THOUGHT)
        for word in ("accept", "reject")
    ]
    job = home / "job"
    job.mkdir()
    (job / "chats.jsonl").write_text("".join(lines))
    plan = {"n_epochs": 30, "learning_rate_multiplier": 5.0}
    TrainingJob("j", "supervised", str(base), str(job / "chats.jsonl"), None, plan, 3).write(job)
    training.train(job)
    made = running_service(home / "service", TorchEngine(), model=job / "model", trainer=TRAINER)
    with made.serving() as service:
        yield service


def make_trainer(tmp_path, **agent):
    hyper_params = HyperParameters(
        scenario="code_validation",
        dataset="generated",
        trainer="pure_text_ei",
        interaction_protocol="solo_verifier",
        rl={"num_iterations": 2, "rollouts_per_iteration": 40},
        code_validation={"prompt_templates": "compact", "num_train": 40, "num_test": 10},
        agents={
            "_default": {
                "max_tokens_per_message": 64,
                "temperature": 0.7,
                "num_invalid_generation_retries": 0,
                "fine_tuning": {"n_epochs": 2},
                **agent,
            }
        },
    )
    settings = ExperimentSettings(home=str(tmp_path), poll_seconds=0.05, progress="none")
    instance = build_scenario_instance(hyper_params, settings)
    return trainer_class(hyper_params)(hyper_params, instance, settings)


@pytest.mark.slow
@pytest.mark.parametrize("may_think", [True, False])
def test_reasoning_is_parsed_before_and_after_fine_tuning(
    service, tmp_path, monkeypatch, may_think
):
    monkeypatch.setenv("RATCHET_LLM_URL", f"{service.url}/v1")
    kwargs = {} if may_think else {"chat_template_kwargs": {"enable_thinking": False}}
    trainer = make_trainer(tmp_path, **kwargs)
    trainer.state = trainer.initial_state()
    played = []
    for iteration in range(2):
        rollouts, _ = trainer.sample_rollouts(iteration, tmp_path / f"{iteration}.jsonl")
        played.append(rollouts)
        if iteration == 0:
            trainer.create_fine_tune_jobs(0, rollouts)
            trainer.await_fine_tune_jobs(0)
    assert trainer.shared_model_groups["verifier"].current_model_name.startswith("ft:")
    for rollouts in played:
        assert rollouts["agents", "valid"].mean() > 0.9
        thoughts = rollouts["agents", "thinking"] != None  # noqa: E711
        assert thoughts.mean() > 0.9 if may_think else thoughts.sum() == 0
        assert not any("think" in text for text in rollouts["agents", "raw_message"].flat)
    shown = report_transcripts(played[0], ["verifier"], ["main"])
    thought = [r.get("thinking", {}).get("verifier") for one in shown for r in one["rounds"]]
    assert thought.count("same" if may_think else None) > 0.9 * len(shown)


@pytest.mark.slow
def test_truncated_reasoning_is_invalid_with_a_reason(service, tmp_path, monkeypatch):
    monkeypatch.setenv("RATCHET_LLM_URL", f"{service.url}/v1")
    trainer = make_trainer(tmp_path, max_tokens_per_message=9)
    trainer.state = trainer.initial_state()
    rollouts, _ = trainer.sample_rollouts(0, tmp_path / "calls.jsonl")
    assert not rollouts["agents", "valid"].any()
    why = "cut off while it was thinking: raise max_tokens_per_message, or have it think less"
    assert list(rollouts["agents", "invalid_reason"].flat).count(why) > 30
