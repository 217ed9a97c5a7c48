"""The public ``tinker`` client, if installed, trains and samples at Ratchet's service."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from micro_model import write_micro_model

from ratchet.errors import StateError
from ratchet.language_models.engines.torch_engine import TorchEngine
from ratchet.language_models.training_service import (
    OptimizerSettings,
    SampleRequest,
    TrainingExample,
    connect,
    connect_tinker,
)

sys.path.insert(0, str(Path(__file__).parent.parent))

from losing_proxy import LosingProxy

tinker = pytest.importorskip("tinker")

MODEL = "ratchet-tiny"
TOKENS = [1, 2, 3, 4, 5]
ADVANTAGES = [0.0, 1.0, -0.5, 0.25]
OLD = [-6.0, -8.0, -5.5, -6.5]


@pytest.fixture(scope="module")
def served(tmp_path_factory, running_service):
    home = tmp_path_factory.mktemp("home")
    model = write_micro_model(home / MODEL)
    with running_service(home, TorchEngine(), model=model).serving() as service:
        yield service


@pytest.fixture(scope="module")
def client(served):
    client = tinker.ServiceClient(base_url=served.url, api_key="tml-none")
    yield client
    client.holder.close()


def _datum(**inputs):
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(TOKENS[:-1]),
        loss_fn_inputs={"target_tokens": TOKENS[1:], **inputs},
    )


def test_its_steps_equal_those_of_ratchets_client(served, client):
    training = client.create_lora_training_client(base_model=MODEL, rank=4, seed=7).result()
    ours = connect(served.url, model=MODEL, lora_rank=4, seed=7)
    example = TrainingExample(
        tuple(TOKENS), (0, 1, 1, 1, 1), advantages=(0, *ADVANTAGES), log_probs=(0, *OLD)
    )
    figures = {"learning_rate": 0.01, "beta1": 0.8, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.1}
    step = tinker.AdamParams(**figures, grad_clip_norm=1.0)
    settings = OptimizerSettings(**figures, max_grad_norm=1.0)
    for number, loss in enumerate(("importance_sampling", "ppo", "cispo")):
        datum = _datum(logprobs=OLD, advantages=ADVANTAGES)
        passed = training.forward_backward([datum], loss)
        stepped = training.optim_step(step)
        expected = ours.forward_backward([example], loss=loss, loss_config={}, sequence=2 * number)
        norm = ours.optim_step(settings, sequence=2 * number + 1)["grad_norm"]
        log_probs = passed.result().loss_fn_outputs[0]["logprobs"].tolist()
        assert log_probs == pytest.approx(expected.log_probs[0][1:], abs=1e-6)
        assert passed.result().metrics["loss:sum"] == pytest.approx(expected.metrics["loss"])
        assert stepped.result().metrics["grad_norm"] == norm
    read = training.forward([_datum(weights=[0, 1, 1, 1])], "cross_entropy").result()
    mine = ours.forward([example], sequence=6).log_probs[0][1:]
    assert read.loss_fn_outputs[0]["logprobs"].tolist() == pytest.approx(mine, abs=1e-6)
    ours.close()


def test_it_saves_samples_and_resumes_from_its_saves(served, client):
    training = client.create_lora_training_client(base_model=MODEL, rank=2, seed=1).result()
    training.forward_backward([_datum(weights=[1, 1, 1, 1])], "cross_entropy").result()
    training.optim_step(tinker.AdamParams(learning_rate=0.05)).result()
    path = training.save_weights_for_sampler(name="first").result().path
    prompt = tinker.ModelInput.from_ints([1, 2, 3])
    params = tinker.SamplingParams(max_tokens=6, seed=3, temperature=0.7, stop=[])
    sampler = client.create_sampling_client(model_path=path).result()
    answer = sampler.sample(prompt=prompt, num_samples=3, sampling_params=params).result()
    assert [len(sequence.tokens) for sequence in answer.sequences] == [6, 6, 6]
    assert len({tuple(sequence.tokens) for sequence in answer.sequences}) == 3
    first = answer.sequences[0]
    assert first.stop_reason == "length"
    with connect(served.url, model=path.removeprefix("tinker://")) as ours:
        request = SampleRequest((1, 2, 3), 6, 0, temperature=0.7)
        assert len(ours.sample([request])[0].tokens) <= 6
    log_probs = sampler.compute_logprobs(prompt).result()
    assert len(log_probs) == 3
    now = training.save_weights_and_get_sampling_client().result()
    again = now.sample(prompt=prompt, num_samples=3, sampling_params=params).result()
    assert [s.tokens for s in again.sequences] == [s.tokens for s in answer.sequences]
    state = training.save_state("state").result().path
    other = client.create_training_client_from_state(state).result()
    same = [
        trained.forward([_datum(weights=[1, 1, 1, 1])], "cross_entropy").result()
        for trained in (training, other)
    ]
    ones, others = (found.loss_fn_outputs[0]["logprobs"].tolist() for found in same)
    assert ones == pytest.approx(others, abs=1e-5)
    resumed = client.create_training_client_from_state_with_optimizer(state).result()
    told = []
    for trained in (training, resumed):
        trained.forward_backward([_datum(weights=[1, 1, 1, 1])], "cross_entropy").result()
        trained.optim_step(tinker.AdamParams(learning_rate=0.05)).result()
        read = trained.forward([_datum(weights=[1, 1, 1, 1])], "cross_entropy").result()
        told.append(read.loss_fn_outputs[0]["logprobs"].tolist())
    assert told[0] == told[1]


def test_ratchets_interface_trains_alike_through_either_client(served):
    ours = connect(served.url, model=MODEL, lora_rank=4, seed=7)
    theirs = connect_tinker(served.url, model=MODEL, lora_rank=4, seed=7)
    example = TrainingExample(
        tuple(TOKENS),
        (0, 0, 1, 1, 1),
        weights=(1, 1, 0.5, 1, 2),
        advantages=(0, *ADVANTAGES),
        log_probs=(0, *OLD),
    )
    settings = OptimizerSettings(0.01, beta1=0.8, beta2=0.9, eps=1e-3, max_grad_norm=1.0)
    for number, loss in enumerate(("cross_entropy", "ppo", "importance_sampling")):
        passed, stepped = (
            (
                session.forward_backward([example], loss=loss, loss_config={}, sequence=2 * number),
                session.optim_step(settings, sequence=2 * number + 1),
            )
            for session in (ours, theirs)
        )
        for one, other in zip(passed, stepped, strict=True):
            if isinstance(one, dict):
                assert one == pytest.approx(other)
            else:
                assert one.log_probs[0] == pytest.approx(other.log_probs[0], abs=1e-6)
    assert theirs.optim_step(settings, sequence=5) == pytest.approx(stepped[1])
    with pytest.raises(StateError, match="got 9, expected 6"):
        theirs.optim_step(settings, sequence=9)
    saved = theirs.save_weights(sequence=6, name="half", optimizer=True)
    request = SampleRequest((1, 2, 3), 5, 1)
    (now,) = theirs.sample([request])
    assert len(now.tokens) == len(now.log_probs)
    resumed = connect_tinker(served.url, model=saved, resume=True)
    follow = {"loss": "ppo", "loss_config": {}}
    told = [
        session.forward_backward([example], sequence=session.next_sequence(), **follow).log_probs
        for session in (ours, theirs, resumed)
    ]
    assert told[1] == told[2]
    assert told[0][0] == pytest.approx(told[1][0], abs=1e-6)
    for session in (ours, theirs, resumed):
        session.close()


def test_a_custom_loss_is_differentiated_by_the_client(client):
    training = client.create_lora_training_client(base_model=MODEL, rank=2, seed=1).result()

    def loss(data, log_probs):
        return -sum(values.mean() for values in log_probs), {"mine": 1.0}

    found = training.forward_backward_custom([_datum()], loss).result()
    assert found.metrics["mine"] == 1.0
    assert training.optim_step(tinker.AdamParams()).result().metrics["grad_norm"] > 0


def test_invalid_requests_are_explained(client):
    training = client.create_lora_training_client(base_model=MODEL, rank=2, seed=1).result()
    with pytest.raises(tinker.TinkerError, match="no gradient was gathered"):
        training.optim_step(tinker.AdamParams()).result()
    with pytest.raises(tinker.TinkerError, match="The model 'none' does not exist"):
        client.create_lora_training_client(base_model="none", rank=2).result()


BAD_PASSES = {
    "targets that do not follow": (
        {"target_tokens": [7, 7, 7, 7], "weights": [1.0] * 4},
        "cross_entropy",
        r"target_tokens\[0\]: got 7, expected 2",
    ),
    "advantages that are not finite": (
        {"advantages": [float("nan")] * 4, "logprobs": OLD},
        "ppo",
        "finite number",
    ),
    "no advantages": ({"logprobs": OLD}, "importance_sampling", "needs advantages"),
    "a token outside the vocabulary": (
        {"target_tokens": [2, 3, 4, 70000], "weights": [1.0] * 4},
        "cross_entropy",
        "got token 70000, expected 0 to",
    ),
}


@pytest.mark.parametrize("case", BAD_PASSES)
def test_a_refused_pass_leaves_the_session_usable(client, case):
    inputs, loss, message = BAD_PASSES[case]
    training = client.create_lora_training_client(base_model=MODEL, rank=2, seed=1).result()
    refused = training.forward_backward([_datum(**inputs)], loss)
    follows = training.forward_backward([_datum(weights=[1.0] * 4)], "cross_entropy")
    with pytest.raises(tinker.TinkerError, match=message):
        refused.result(timeout=60)
    assert follows.result(timeout=60).metrics["loss:sum"] > 0


def test_refused_steps_and_saves_leave_the_session_usable(client):
    training = client.create_lora_training_client(base_model=MODEL, rank=2, seed=1).result()
    training.forward_backward([_datum(weights=[1.0] * 4)], "cross_entropy").result(timeout=60)
    with pytest.raises(tinker.TinkerError, match="learning_rate"):
        training.optim_step(tinker.AdamParams(learning_rate=float("nan"))).result(timeout=60)
    with pytest.raises(tinker.TinkerError, match="Invalid value for 'name'"):
        training.save_state("a/b").result(timeout=60)
    stepped = training.optim_step(tinker.AdamParams(learning_rate=0.01)).result(timeout=60)
    assert stepped.metrics["step"] == 1
    sampler = training.save_weights_and_get_sampling_client().result(timeout=60)
    params = tinker.SamplingParams(max_tokens=3, seed=1)
    for tokens, message in (([1, 70000], "got token 70000"), ([], "Invalid value for 'prompt'")):
        prompt = tinker.ModelInput.from_ints(tokens)
        with pytest.raises(tinker.TinkerError, match=message):
            sampler.sample(prompt=prompt, num_samples=1, sampling_params=params).result(timeout=60)


@pytest.mark.slow
def test_lost_truncated_duplicated_and_late_messages_have_no_effect(served, client):
    def trained(client):
        training = client.create_lora_training_client(base_model=MODEL, rank=2, seed=1).result()
        for _ in range(4):
            datum = _datum(logprobs=OLD, advantages=ADVANTAGES)
            passed = training.forward_backward([datum], "ppo")
            stepped = training.optim_step(tinker.AdamParams(learning_rate=0.01))
            yield passed.result().metrics, stepped.result().metrics

    undisturbed = list(trained(client))
    proxy = LosingProxy(served.url, share=0.0, without=("html",))  # which its client can't read
    try:
        lossy = tinker.ServiceClient(base_url=proxy.url, api_key="tml-none")
        proxy.share = 0.4
        assert list(trained(lossy)) == undisturbed
        proxy.share = 0.0
        lossy.holder.close()
    finally:
        proxy.close()
    assert all(proxy.seen.values()), proxy.seen
