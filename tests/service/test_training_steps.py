"""Token-level training of a group's model at a real service: exactly once, and resumed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from micro_model import write_micro_model
from safetensors.torch import load_file

from ratchet.language_models.endpoints import Endpoint
from ratchet.language_models.engines.torch_engine import TorchEngine
from ratchet.language_models.training_service import OptimizerSettings, TrainingExample, connect
from ratchet.language_models.training_service.steps import ServiceLoss, TrainingSteps
from ratchet.parameters.chat_agents import TextAgentParameters
from ratchet.scenarios.pure_text.agents.group_state import PureTextSharedModelGroupState
from ratchet.scenarios.pure_text.agents.token_training import train_on_tokens

MODEL = "ratchet-tiny"
EXAMPLES = [
    TrainingExample((1, 2, 3, n), (0, 0, 1, 1), advantages=(0, 0, 1.0, -0.5)) for n in range(4, 9)
]
PPO = ServiceLoss("ppo", {}, of_sampler=True)
OPTIMIZERS = [OptimizerSettings(1e-2)] * 2
STEPS = TrainingSteps(EXAMPLES, [range(2), range(2, len(EXAMPLES))], OPTIMIZERS, PPO, 2)


@pytest.fixture(scope="module")
def served(tmp_path_factory, running_service):
    model = write_micro_model(tmp_path_factory.mktemp("model") / MODEL)
    home = tmp_path_factory.mktemp("home")
    with running_service(home, TorchEngine(), model=model).serving() as service:
        yield service


@pytest.fixture
def group(served, request):
    """Stub of a group for training only, with a separate seed for each test."""
    parameters = TextAgentParameters(fine_tuning={"lora_rank": 2})
    seed = sum(request.node.name.encode())
    return SimpleNamespace(
        state=PureTextSharedModelGroupState(MODEL, (MODEL,)),
        endpoint=Endpoint(f"{served.url}/v1"),
        parameters=parameters,
        current_model_name=MODEL,
        training_seed=lambda method: seed,
    )


def train(group, steps=STEPS, name="g-0"):
    metrics = train_on_tokens(group, steps, name=name, reward_averages={})
    return group.state.token_training, metrics


def switch(group):
    """Switch the group to the trained model."""
    group.current_model_name = group.state.token_training.model


def weights(served, model):
    return load_file(served.service.models.get(model).folder / "adapter_model.safetensors")


def test_completed_steps_are_not_repeated(served, group):
    before = group.state
    first, metrics = train(group)
    group.state = before
    assert train(group) == (first, metrics)
    assert served.service.training.records.next_sequence(first.session) == 6
    assert metrics["steps"] == 2


def test_a_fork_has_a_separate_session(served, group):
    before = group.state
    first, _ = train(group)
    forks = []
    for changed in (
        replace(STEPS, optimizers=[OptimizerSettings(1e-3)] * 2),
        replace(STEPS, loss=replace(PPO, name="reinforce")),
        replace(STEPS, batches=STEPS.batches[:1], optimizers=OPTIMIZERS[:1]),
    ):
        group.state = before
        forks.append(train(group, changed)[0])
    assert len({first.session, *(fork.session for fork in forks)}) == 4
    assert len({first.model, *(fork.model for fork in forks)}) == 4
    group.state = before
    assert train(group)[0] == first


def test_the_next_iteration_resumes_with_the_moments(served, group):
    train(group)
    switch(group)
    second, _ = train(group, name="g-1")
    seed = group.training_seed("tokens")
    with connect(served.url, model=MODEL, lora_rank=2, seed=seed) as whole:
        both = replace(STEPS, batches=[*STEPS.batches] * 2, optimizers=OPTIMIZERS * 2)
        model, _ = both.take(whole, "whole")
    found, expected = weights(served, second.model), weights(served, model)
    assert found.keys() == expected.keys()
    assert all(bool((found[name] == expected[name]).all()) for name in found)


def test_a_different_rank_starts_a_new_adapter(served, group):
    train(group)
    switch(group)
    group.parameters = TextAgentParameters(fine_tuning={"lora_rank": 3})
    learned, _ = train(group, name="g-1")
    assert learned.lora_rank == 3
    ranks = {min(tensor.shape) for tensor in weights(served, learned.model).values()}
    assert ranks == {3}
