"""The public ``tinker`` client, if installed, trains and samples at Ratchet's service."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ratchet.errors import StateError
from ratchet.language_models.training_service import (
    OptimizerSettings,
    SampleRequest,
    TrainingExample,
    connect,
    connect_tinker,
)

sys.path.insert(0, str(Path(__file__).parent.parent / "language_models"))

from losing_proxy import LosingProxy

tinker = pytest.importorskip("tinker")

MODEL = "ratchet-tiny"
TOKENS = [1, 2, 3, 4, 5]
ADVANTAGES = [0.0, 1.0, -0.5, 0.25]
OLD = [-6.0, -8.0, -5.5, -6.5]


def _datum(**inputs):
    return tinker.Datum(
        model_input=tinker.ModelInput.from_ints(TOKENS[:-1]),
        loss_fn_inputs={"target_tokens": TOKENS[1:], **inputs},
    )


def test_its_steps_equal_those_of_ratchets_client(micro_served, tinker_client):
    training = tinker_client.create_lora_training_client(base_model=MODEL, rank=4, seed=7).result()
    ours = connect(micro_served.url, model=MODEL, lora_rank=4, seed=7)
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


def test_it_saves_samples_and_resumes_from_its_saves(micro_served, tinker_client):
    training = tinker_client.create_lora_training_client(base_model=MODEL, rank=2, seed=1).result()
    training.forward_backward([_datum(weights=[1, 1, 1, 1])], "cross_entropy").result()
    training.optim_step(tinker.AdamParams(learning_rate=0.05)).result()
    path = training.save_weights_for_sampler(name="first").result().path
    prompt = tinker.ModelInput.from_ints([1, 2, 3])
    params = tinker.SamplingParams(max_tokens=6, seed=3, temperature=0.7, stop=[])
    sampler = tinker_client.create_sampling_client(model_path=path).result()
    answer = sampler.sample(prompt=prompt, num_samples=3, sampling_params=params).result()
    assert [len(sequence.tokens) for sequence in answer.sequences] == [6, 6, 6]
    assert len({tuple(sequence.tokens) for sequence in answer.sequences}) == 3
    first = answer.sequences[0]
    assert first.stop_reason == "length"
    with connect(micro_served.url, model=path.removeprefix("tinker://")) as ours:
        request = SampleRequest((1, 2, 3), 6, 0, temperature=0.7)
        assert len(ours.sample([request])[0].tokens) <= 6
    log_probs = sampler.compute_logprobs(prompt).result()
    assert len(log_probs) == 3
    now = training.save_weights_and_get_sampling_client().result()
    again = now.sample(prompt=prompt, num_samples=3, sampling_params=params).result()
    assert [s.tokens for s in again.sequences] == [s.tokens for s in answer.sequences]
    state = training.save_state("state").result().path
    other = tinker_client.create_training_client_from_state(state).result()
    same = [
        trained.forward([_datum(weights=[1, 1, 1, 1])], "cross_entropy").result()
        for trained in (training, other)
    ]
    ones, others = (found.loss_fn_outputs[0]["logprobs"].tolist() for found in same)
    assert ones == pytest.approx(others, abs=1e-5)
    resumed = tinker_client.create_training_client_from_state_with_optimizer(state).result()
    told = []
    for trained in (training, resumed):
        trained.forward_backward([_datum(weights=[1, 1, 1, 1])], "cross_entropy").result()
        trained.optim_step(tinker.AdamParams(learning_rate=0.05)).result()
        read = trained.forward([_datum(weights=[1, 1, 1, 1])], "cross_entropy").result()
        told.append(read.loss_fn_outputs[0]["logprobs"].tolist())
    assert told[0] == told[1]


def test_ratchets_interface_trains_alike_through_either_client(micro_served):
    ours = connect(micro_served.url, model=MODEL, lora_rank=4, seed=7)
    theirs = connect_tinker(micro_served.url, model=MODEL, lora_rank=4, seed=7)
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
    resumed = connect_tinker(micro_served.url, model=saved, resume=True)
    follow = {"loss": "ppo", "loss_config": {}}
    told = [
        session.forward_backward([example], sequence=session.next_sequence(), **follow).log_probs
        for session in (ours, theirs, resumed)
    ]
    assert told[1] == told[2]
    assert told[0][0] == pytest.approx(told[1][0], abs=1e-6)
    for session in (ours, theirs, resumed):
        session.close()


def test_a_custom_loss_is_differentiated_by_the_client(tinker_client):
    training = tinker_client.create_lora_training_client(base_model=MODEL, rank=2, seed=1).result()

    def loss(data, log_probs):
        return -sum(values.mean() for values in log_probs), {"mine": 1.0}

    found = training.forward_backward_custom([_datum()], loss).result()
    assert found.metrics["mine"] == 1.0
    assert training.optim_step(tinker.AdamParams()).result().metrics["grad_norm"] > 0


def test_invalid_requests_are_explained(tinker_client):
    training = tinker_client.create_lora_training_client(base_model=MODEL, rank=2, seed=1).result()
    with pytest.raises(tinker.TinkerError, match="no gradient was gathered"):
        training.optim_step(tinker.AdamParams()).result()
    with pytest.raises(tinker.TinkerError, match="The model 'none' does not exist"):
        tinker_client.create_lora_training_client(base_model="none", rank=2).result()


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
def test_a_refused_pass_leaves_the_session_usable(tinker_client, case):
    inputs, loss, message = BAD_PASSES[case]
    training = tinker_client.create_lora_training_client(base_model=MODEL, rank=2, seed=1).result()
    refused = training.forward_backward([_datum(**inputs)], loss)
    follows = training.forward_backward([_datum(weights=[1.0] * 4)], "cross_entropy")
    with pytest.raises(tinker.TinkerError, match=message):
        refused.result(timeout=300)
    assert follows.result(timeout=300).metrics["loss:sum"] > 0


def test_refused_steps_and_saves_leave_the_session_usable(tinker_client):
    training = tinker_client.create_lora_training_client(base_model=MODEL, rank=2, seed=1).result()
    training.forward_backward([_datum(weights=[1.0] * 4)], "cross_entropy").result(timeout=300)
    with pytest.raises(tinker.TinkerError, match="learning_rate"):
        training.optim_step(tinker.AdamParams(learning_rate=float("nan"))).result(timeout=300)
    with pytest.raises(tinker.TinkerError, match="Invalid value for 'name'"):
        training.save_state("a/b").result(timeout=300)
    stepped = training.optim_step(tinker.AdamParams(learning_rate=0.01)).result(timeout=300)
    assert stepped.metrics["step"] == 1
    sampler = training.save_weights_and_get_sampling_client().result(timeout=300)
    params = tinker.SamplingParams(max_tokens=3, seed=1)
    for tokens, message in (([1, 70000], "got token 70000"), ([], "Invalid value for 'prompt'")):
        prompt = tinker.ModelInput.from_ints(tokens)
        with pytest.raises(tinker.TinkerError, match=message):
            sampler.sample(prompt=prompt, num_samples=1, sampling_params=params).result(timeout=300)


@pytest.mark.slow
def test_lost_truncated_duplicated_and_late_messages_have_no_effect(micro_served, tinker_client):
    def trained(client):
        training = client.create_lora_training_client(base_model=MODEL, rank=2, seed=1).result()
        for _ in range(4):
            datum = _datum(logprobs=OLD, advantages=ADVANTAGES)
            passed = training.forward_backward([datum], "ppo")
            stepped = training.optim_step(tinker.AdamParams(learning_rate=0.01))
            yield passed.result().metrics, stepped.result().metrics

    undisturbed = list(trained(tinker_client))
    proxy = LosingProxy(micro_served.url, share=0.0, without=("html",))  # not read by the client
    try:
        lossy = tinker.ServiceClient(base_url=proxy.url, api_key="tml-none")
        proxy.share = 0.4
        assert list(trained(lossy)) == undisturbed
        proxy.share = 0.0
        lossy.holder.close()
    finally:
        proxy.close()
    assert all(proxy.seen.values()), proxy.seen


def _trained(client, rank=2):
    training = client.create_lora_training_client(base_model=MODEL, rank=rank, seed=1).result()
    training.forward_backward([_datum(weights=[1.0] * 4)], "cross_entropy").result(timeout=300)
    training.optim_step(tinker.AdamParams(learning_rate=0.05)).result(timeout=300)
    return training


def test_checkpoints_expire_after_their_time_to_live(micro_served, tinker_client):
    training = _trained(tinker_client)
    path = training.save_state("000002", ttl_seconds=3600).result(timeout=300).path
    forever = training.save_state("final").result(timeout=300).path
    tinker_client.create_training_client_from_state(path).result(timeout=300)
    database = micro_served.service.database
    (row,) = database.rows("SELECT * FROM saved_weights WHERE name = '000002'")
    assert row["expires_at"] - row["created_at"] == 3600
    other = _trained(tinker_client)
    path = other.save_state("expired", ttl_seconds=3600).result(timeout=300).path
    with database.transaction() as connection:
        connection.execute("UPDATE saved_weights SET expires_at = 1 WHERE name = 'expired'")
    with pytest.raises(tinker.TinkerError, match="expired at 1970-01-01"):
        tinker_client.create_training_client_from_state(path).result(timeout=300)
    micro_served.service.runner._tidy()
    assert not database.rows("SELECT * FROM saved_weights WHERE name = 'expired'")
    assert other.get_info().model_id not in str(
        [m.id for m in micro_served.service.models.list().data]
    )
    with pytest.raises(tinker.TinkerError, match="saved with ttl_seconds and has expired"):
        tinker_client.create_training_client_from_state(path).result(timeout=300)
    tinker_client.create_training_client_from_state(forever).result(timeout=300)


def test_a_checkpoints_name_is_replaced_only_on_request(tinker_client):
    training = _trained(tinker_client)
    first = training.save_state("last").result(timeout=300).path
    with pytest.raises(tinker.TinkerError, match=r"exists.*overwrite=True"):
        training.save_state("last").result(timeout=300)
    assert training.save_weights_for_sampler("last").result(timeout=300).path != first
    assert training.save_state("last", overwrite=True).result(timeout=300).path == first


PADDED = {
    "cross_entropy": {"weights": [0.0, 0.0, 1.0, 1.0]},
    "importance_sampling": {"advantages": [0.0, 0.0, 1.0, 0.5], "logprobs": [0.0, 0.0, -8.0, -8.0]},
    "ppo": {"advantages": [0.0, 0.0, 1.0, 0.5], "logprobs": [0.0, 0.0, -8.0, -8.0]},
    "cispo": {"advantages": [0.0, 0.0, 1.0, 0.5], "logprobs": [0.0, 0.0, -8.0, -8.0]},
    "dro": {"advantages": [0.0, 0.0, 1.0, 0.5], "logprobs": [0.0, 0.0, -8.0, -8.0]},
}


@pytest.mark.parametrize("loss", PADDED)
def test_padded_targets_are_not_read(tinker_client, loss):
    training = tinker_client.create_lora_training_client(base_model=MODEL, rank=2, seed=1).result()
    ours, padded = (
        training.forward_backward(
            [_datum(**PADDED[loss], target_tokens=[*padding, *TOKENS[3:]], **more)], loss
        ).result(timeout=300)
        for padding, more in (
            (TOKENS[1:3], {"loss_mask": tinker.TensorData([0, 0, 1, 1], "int64")}),
            ([0, 0], {}),
        )
    )
    one, other = (found.loss_fn_outputs[0]["logprobs"].tolist() for found in (ours, padded))
    assert other == one
    assert padded.metrics == ours.metrics


def _log_probs(training):
    read = training.forward([_datum(weights=[1.0] * 4)], "cross_entropy").result(timeout=300)
    return read.loss_fn_outputs[0]["logprobs"].tolist()


def _step(training):
    training.forward_backward([_datum(weights=[1.0] * 4)], "cross_entropy").result(timeout=300)
    return training.optim_step(tinker.AdamParams(learning_rate=0.05)).result(timeout=300).metrics


@pytest.mark.filterwarnings("ignore:DEPRECATED")
def test_saved_weights_are_loaded_into_a_running_session(tinker_client):
    training = _trained(tinker_client)
    saved = training.save_state("saved").result(timeout=300).path
    at_save, metrics = _log_probs(training), _step(training)
    after_step = _log_probs(training)
    training.load_state_with_optimizer(saved).result(timeout=300)
    assert _log_probs(training) == at_save
    assert _step(training) == metrics
    assert _log_probs(training) == after_step
    training.load_state(saved).result(timeout=300)
    assert _log_probs(training) == at_save
    assert _step(training)["step"] == 1  # of a new optimizer
    assert _log_probs(training) != after_step


@pytest.mark.filterwarnings("ignore:DEPRECATED")
def test_refused_loads_leave_the_session_usable(tinker_client):
    training, other = _trained(tinker_client), _trained(tinker_client, rank=4)
    sampler = training.save_weights_for_sampler("s").result(timeout=300).path
    of_rank_4 = other.save_state("s").result(timeout=300).path
    bad = {
        sampler: "was not saved for training",
        of_rank_4: "with LoRA rank 4, this session trains 'ratchet-tiny' with rank 2",
        "tinker://x:train:0/weights/a": "does not exist",
    }
    before = _log_probs(training)
    for path, message in bad.items():
        with pytest.raises(tinker.TinkerError, match=message):
            training.load_state(path).result(timeout=300)
    assert _log_probs(training) == before


def test_numbers_of_requests_that_never_arrived_are_skipped(tinker_client):
    training = _trained(tinker_client)
    skipped = [training._get_request_id() for _ in range(3)]
    training._turn_counter += len(skipped)
    assert _step(training)["step"] == 2


def test_a_client_from_saved_weights_trains_the_same_adapter(tinker_client):
    training = _trained(tinker_client)
    path = training.save_state("start").result(timeout=300).path
    resumed = tinker_client.create_training_client_from_state(path).result(timeout=300)
    assert _log_probs(resumed) == _log_probs(training)
    assert _step(resumed)["step"] == 1
    assert resumed.get_info().lora_rank == 2


def test_the_base_model_is_named_after_any_resumption(micro_served, tinker_client, rest_client):
    training = _trained(tinker_client)
    state = training.save_state("a").result(timeout=300).path
    sampler = training.save_weights_for_sampler("a").result(timeout=300).path
    for resumed in (
        tinker_client.create_training_client_from_state(state),
        tinker_client.create_training_client_from_state(sampler),
        tinker_client.create_training_client_from_state_with_optimizer(state),
    ):
        info = resumed.result(timeout=300).get_info()
        assert (info.model_name, info.model_data.tokenizer_id) == (MODEL, MODEL)
    sampling = tinker_client.create_sampling_client(model_path=sampler).result()
    assert sampling.get_base_model() == MODEL
    found = rest_client.get_sampler(sampling._sampling_session_id).result()
    assert (found.base_model, found.model_path) == (MODEL, sampler)
    base = tinker_client.create_sampling_client(base_model=MODEL).result()
    found = rest_client.get_sampler(base._sampling_session_id).result()
    assert (found.base_model, found.model_path) == (MODEL, None)


def test_texts_end_samples_with_the_token_that_completes_them(micro_served, tinker_client):
    sampler = tinker_client.create_sampling_client(base_model=MODEL).result()
    prompt, decode = tinker.ModelInput.from_ints([1, 2, 3]), _decoder(micro_served)

    def sampled(stop):
        params = tinker.SamplingParams(max_tokens=100, seed=3, stop=stop)
        answer = sampler.sample(prompt=prompt, num_samples=4, sampling_params=params)
        return answer.result(timeout=300).sequences

    free = sampled(None)
    text = decode(free[0].tokens[:70])
    stop = text[-5:-1]
    length = next(n for n in range(1, 71) if stop in decode(free[0].tokens[:n]))
    for stops in (stop, [stop], ["none of it", stop]):
        ended = sampled(stops)
        assert ended[0].stop_reason == "stop"
        assert ended[0].tokens == free[0].tokens[:length]
        assert ended[0].logprobs == free[0].logprobs[:length]
        for one, other in zip(ended[1:], free[1:], strict=True):
            assert stop in decode(one.tokens) or one.tokens == other.tokens


def _decoder(micro_served):
    from ratchet.language_models.local.tokenizer import ChatTokenizer

    return ChatTokenizer(micro_served.service.models.base.folder).decode
