"""Training sessions over HTTP: exactly-once operations despite lost messages and kills."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ratchet.errors import DataError, LanguageModelError
from ratchet.language_models.connection import StatusError
from ratchet.language_models.engines.torch_engine import TorchEngine
from ratchet.language_models.retrying import RetryPolicy
from ratchet.language_models.training_service import (
    OptimizerSettings,
    SampleRequest,
    TrainingExample,
    connect,
    models,
)
from ratchet.language_models.training_service.models import read_model_files
from ratchet.models.folders import WEIGHTS_FILE
from ratchet.models.lora import Lora
from ratchet.models.optimizers import Adam
from ratchet.service.api.errors import ApiError
from ratchet.service.api.routes.models import add_model
from ratchet.service.models import StoredModel
from ratchet.service.training import trained_model
from ratchet.service.training_sessions import sessions
from ratchet.service.training_sessions.state import SessionState

sys.path.insert(0, str(Path(__file__).parent.parent / "language_models"))

from losing_proxy import LosingProxy
from micro_model import write_micro_model

QUICK = RetryPolicy(max_attempts=30, first_delay_seconds=0.001, max_delay_seconds=0.01)
MODEL = "ratchet-tiny"
EXAMPLES = [
    TrainingExample(
        (1, 2, 3, 4, 5),
        (0, 0, 1, 1, 1),
        weights=(0, 0, 0.5, 0.5, 1),
        advantages=(0, 0, 1.0, -0.5, 0.25),
        log_probs=(0, 0, -8.0, -5.5, -6.5),
    ),
    TrainingExample((7, 2, 3), (0, 1, 1), advantages=(0, -1.0, 2.0)),
]
STEP = OptimizerSettings(learning_rate=1e-2, weight_decay=0.1, max_grad_norm=1.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_micro_model(tmp_path_factory.mktemp("model") / MODEL)


@pytest.fixture(scope="module")
def served(tmp_path_factory, running_service, model):
    home = tmp_path_factory.mktemp("home")
    with running_service(home, TorchEngine(), model=model).serving() as service:
        yield service


@pytest.fixture
def open_session(served):
    opened = []

    def open_session(url=None, **options):
        chosen = {"model": MODEL, "policy": QUICK, **options}
        opened.append(connect(url or served.url, **chosen))
        return opened[-1]

    yield open_session
    for session in opened:
        session.close()


def _step(session, number, *, loss="ppo", examples=EXAMPLES, step=STEP, config=None):
    """Take a training step: forward-backward, then optimizer step."""
    config = {"clip_low_threshold": 0.8} if loss == "ppo" and config is None else config or {}
    found = session.forward_backward(examples, loss=loss, loss_config=config, sequence=2 * number)
    return found, session.optim_step(step, sequence=2 * number + 1)


def _weights(served, session):
    """Save a session's weights and read them."""
    name = session.save_weights(sequence=session.next_sequence(), name="w")
    folder = served.service.models.get(name).folder
    (file,) = folder.glob("*.safetensors")
    return load_file(file)


def _equal(ones, others):
    assert ones.keys() == others.keys()
    return all(bool((ones[name] == others[name]).all()) for name in ones)


@pytest.mark.parametrize("rank", [0, 4])
def test_training_raises_the_likelihood_of_trained_tokens(open_session, rank):
    session = open_session(lora_rank=rank)
    step = OptimizerSettings(learning_rate=2e-2)
    losses = [
        _step(session, i, loss="cross_entropy", step=step)[0].metrics["loss"] for i in range(8)
    ]
    assert losses[-1] < 0.7 * losses[0]
    assert session.next_sequence() == 16


@pytest.mark.parametrize("rank", [0, 4])
def test_lost_truncated_duplicated_and_late_messages_have_no_effect(served, open_session, rank):
    undisturbed = open_session(lora_rank=rank, seed=3)
    told = [_step(undisturbed, i) for i in range(12)]
    proxy = LosingProxy(served.url, share=0.5, seed=rank)
    try:
        session = open_session(proxy.url, lora_rank=rank, seed=3, intent=f"lossy {rank}")
        assert [_step(session, i) for i in range(12)] == told
        assert _equal(_weights(served, session), _weights(served, undisturbed))
    finally:
        proxy.close()
    assert all(proxy.seen.values()), proxy.seen


def test_an_intent_has_one_session(open_session):
    first = open_session(intent="one", seed=5)
    _step(first, 0)
    assert open_session(intent="one", seed=5).session_id == first.session_id
    assert open_session(seed=5).session_id != first.session_id
    with pytest.raises(StatusError, match="another model, adapter or seed"):
        open_session(intent="one", seed=6)


def test_repeated_sequence_numbers_are_replayed_or_refused(open_session):
    session = open_session()
    told = [_step(session, i) for i in range(2)]
    assert [_step(session, i) for i in range(2)] == told
    with pytest.raises(StatusError, match="0 was a forward_backward with other content"):
        session.forward_backward(EXAMPLES[:1], loss="ppo", loss_config={}, sequence=0)
    with pytest.raises(StatusError, match="got 6, expected 4"):
        session.optim_step(STEP, sequence=6)
    assert session.next_sequence() == 4


def test_refused_operations_have_no_effect_and_can_be_corrected(served, open_session):
    session, other = open_session(seed=1), open_session(seed=1)
    for _ in range(2):
        with pytest.raises(StatusError, match=r"loss: got 'pppo'.*Did you mean 'ppo'"):
            session.forward_backward(EXAMPLES, loss="pppo", loss_config={}, sequence=0)
    with pytest.raises(StatusError, match="no gradient was gathered"):
        session.optim_step(STEP, sequence=0)
    far = [TrainingExample((1, 10**6), (0, 1), advantages=(0.0, 1.0))]
    with pytest.raises(StatusError, match="got token 1000000, expected 0 to"):
        session.forward_backward(far, loss="ppo", loss_config={}, sequence=0)
    steep = [replace(EXAMPLES[1], advantages=(0, 3e38, 3e38))]
    for loss in ("importance_sampling", "reinforce"):
        with pytest.raises(StatusError, match="not finite"):
            session.forward_backward(steep, loss=loss, loss_config={}, sequence=0)
    assert _step(session, 0) == _step(other, 0)
    assert _equal(_weights(served, session), _weights(served, other))


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "gspo", "cispo", "reinforce"])
def test_log_ratios_far_beyond_float32_have_finite_gradients(open_session, loss):
    session = open_session()
    far = [replace(EXAMPLES[1], log_probs=(0, -500.0, -500.0))]
    found = session.forward_backward(far, loss=loss, loss_config={}, sequence=0)
    assert all(map(math.isfinite, found.metrics.values()))
    assert math.isfinite(session.optim_step(STEP, sequence=1)["grad_norm"])


@pytest.mark.parametrize("rank", [0, 4])
def test_sampling_and_training_log_probabilities_agree(open_session, rank):
    session = open_session(lora_rank=rank)
    for number in range(3):
        _step(session, number)
    prompts = [tuple(range(1, 2 + n)) for n in range(5)]
    requests = [SampleRequest(prompt, 12, seed) for seed, prompt in enumerate(prompts)]
    completions = session.sample(requests)
    assert completions == session.sample(requests)
    assert len({completion.tokens for completion in completions}) > 1
    examples = [
        TrainingExample((*p, *c.tokens), (0,) * len(p) + (1,) * len(c.tokens))
        for p, c in zip(prompts, completions, strict=True)
    ]
    found = session.forward(examples, sequence=6)
    for prompt, completion, log_probs in zip(prompts, completions, found.log_probs, strict=True):
        assert log_probs[len(prompt) :] == pytest.approx(completion.log_probs, abs=1e-4)
    saved = session.save_weights(sequence=7, name="now")
    _step(session, 4)
    assert session.sample(requests) != completions
    assert [c.tokens for c in session.sample(requests, model=saved)] == [
        c.tokens for c in completions
    ]


def test_stop_tokens_and_temperature(open_session):
    session = open_session()
    (free,) = session.sample([SampleRequest((1, 2), 8, 4)])
    (stopped,) = session.sample([SampleRequest((1, 2), 8, 4, stop_ids=(free.tokens[2],))])
    assert stopped.tokens == free.tokens[: free.tokens.index(free.tokens[2]) + 1]
    assert (stopped.finish_reason, free.finish_reason) == ("stop", "length")
    (greedy,) = session.sample([SampleRequest((1, 2), 4, 4, temperature=0.0)])
    (cold,) = session.sample([SampleRequest((1, 2), 4, 9, temperature=1e-4)])
    assert greedy.tokens == cold.tokens
    assert sum(cold.log_probs) > sum(greedy.log_probs)


@pytest.mark.slow
@pytest.mark.parametrize(("has_room", "fit"), [(True, 4), (False, 1)])
def test_concurrent_sessions_are_independent(served, open_session, monkeypatch, has_room, fit):
    monkeypatch.setattr(sessions, "has_room", lambda size: has_room)

    def work(seed):
        session = connect(served.url, model=MODEL, lora_rank=2, seed=seed, policy=QUICK)
        with session, served.client() as client:
            told = [_step(session, number) for number in range(2)]
            ask = {"model": MODEL, "messages": [{"role": "user", "content": "?"}], "max_tokens": 3}
            return told, client.chat.completions.create(**ask, seed=1).choices[0].message.content

    alone = [work(seed) for seed in range(5)]  # more than fit in memory
    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(work, range(5))) == alone
    assert len(served.service.training._open) == fit


def test_a_saved_model_answers_chats_and_starts_other_sessions(served, open_session):
    session = open_session(lora_rank=2)
    _step(session, 0, loss="cross_entropy")
    name = session.save_weights(sequence=2, name="first")
    assert name == session.save_weights(sequence=2, name="first")
    with served.client() as client:
        assert name in [model.id for model in client.models.list()]
        ask = {"model": name, "messages": [{"role": "user", "content": "?"}], "max_tokens": 3}
        assert client.chat.completions.create(**ask).choices[0].message.content is not None
    before = session.forward(EXAMPLES, sequence=3)
    other = open_session(model=name, lora_rank=3)
    assert other.forward(EXAMPLES, sequence=0).log_probs == before.log_probs
    with served.client() as client, pytest.raises(Exception, match="starts from"):
        client.models.delete(name)
    other.delete()
    with pytest.raises(StatusError, match=r"training session .* does not exist"):
        other.next_sequence()


def test_a_session_resumes_from_another_ones_saved_state(served, open_session):
    first = open_session(lora_rank=2, seed=4)
    _step(first, 0)
    name = first.save_weights(sequence=2, name="half", optimizer=True)
    second = open_session(model=name, resume=True, intent="second")
    assert open_session(model=name, resume=True, intent="second").session_id == second.session_id
    told = first.forward_backward(EXAMPLES, loss="ppo", loss_config={}, sequence=3)
    assert second.forward_backward(EXAMPLES, loss="ppo", loss_config={}, sequence=0) == told
    with pytest.raises(StatusError, match="save the optimizer behind its step"):
        second.save_weights(sequence=1, name="x", optimizer=True)
    assert first.optim_step(STEP, sequence=4) == second.optim_step(STEP, sequence=1)
    assert _equal(_weights(served, first), _weights(served, second))
    plain = first.save_weights(sequence=first.next_sequence(), name="plain")
    with pytest.raises(StatusError, match="was not saved with its optimizer"):
        open_session(model=plain, resume=True)


def test_a_run_with_a_session_in_each_iteration_has_one_model_in_memory(
    served, open_session, monkeypatch
):
    monkeypatch.setattr(sessions, "_WORK_PER_SNAPSHOT", 1e9)
    training, states, model = served.service.training, [], {"model": MODEL}
    for iteration in range(3):
        session = open_session(**model, lora_rank=2, seed=9, intent=f"iteration {iteration}")
        _step(session, 0)
        name = session.save_weights(sequence=2, name="iteration", optimizer=True)
        model = {"model": name, "resume": True}
        states.append(training._open[session.session_id].state)
        training.sample_and_score(name, [SampleRequest((1, 2), 1, seed=0)]).result()
        assert training.records.row(session.session_id)["snapshot"] == 2, "no step is repeated"
    assert states[0] is states[1] is states[2]
    assert sum(opened.state is states[0] for opened in training._open.values()) == 1
    saved = [model_id for model_id in training._samplers if ":iteration:" in model_id]
    assert saved == [name], "no earlier model is in memory"


@pytest.mark.parametrize("work", [0.0, 1e9])
def test_saving_links_the_snapshot_of_the_last_step(served, open_session, monkeypatch, work):
    monkeypatch.setattr(sessions, "_WORK_PER_SNAPSHOT", work)
    session = open_session()
    _step(session, 0)
    saved = served.service.models.get(session.save_weights(sequence=2, name="w", optimizer=True))
    file = next(saved.folder.glob("training_state*"))
    assert file.stat().st_nlink == 2
    session.forward_backward(EXAMPLES, loss="cross_entropy", loss_config={}, sequence=3)
    session.optim_step(STEP, sequence=4)
    session.delete()
    assert file.stat().st_nlink == 1


def test_sessions_report_their_steps_without_snapshots(served, open_session, monkeypatch):
    monkeypatch.setattr(sessions, "_WORK_PER_SNAPSHOT", 1e9)
    session = open_session()
    for number in range(3):
        _step(session, number)
    records = served.service.training.records
    assert records.describe(records.row(session.session_id)).steps == 3


def test_an_unreadable_tokenizer_is_refused(served, model):
    files = {file.name: file.read_bytes() for file in model.iterdir()}
    with pytest.raises(ApiError, match=r"tokenizer\.json cannot be read"):
        add_model(served.service.models, "torn", {**files, "tokenizer.json": b'{"a": 1}'})


def test_a_recreated_session_saves_the_same_model_or_one_with_another_name(served, open_session):
    def take(rate):
        session = open_session(intent="anew")
        _step(session, 0, step=replace(STEP, learning_rate=rate))
        name = session.save_weights(sequence=2, name="w", optimizer=True)
        session.delete()
        return name, load_file(served.service.models.get(name).folder / "model.safetensors")

    first, weights = take(1e-2)
    other, _ = take(2e-2)
    again, still = take(1e-2)
    assert first == again != other
    assert _equal(weights, still)


def test_an_operation_during_deletion_does_not_enter_the_next_session(
    served, open_session, monkeypatch
):
    session, training = open_session(intent="late"), served.service.training
    database, records = served.service.database, training.records
    own = database.transaction

    def after_deletion():
        monkeypatch.setattr(database, "transaction", own)
        records.delete(session.session_id)
        return own()

    monkeypatch.setattr(database, "transaction", after_deletion)
    with pytest.raises(ApiError, match=r"training session .* does not exist"):
        records.accept(session.session_id, "optim_step", 0, "{}")
    assert open_session(intent="late").next_sequence() == 0


def test_a_model_that_no_service_accepts_is_not_read(model, monkeypatch):
    size = sum(path.stat().st_size for path in model.iterdir())
    monkeypatch.setattr(models, "UPLOAD_BYTES", size)
    read_model_files(model)
    monkeypatch.setattr(models, "UPLOAD_BYTES", size - 1)
    monkeypatch.setattr(Path, "read_bytes", None)
    with pytest.raises(DataError, match=f"`ratchet llm serve --model {model}`.*'{MODEL}'"):
        read_model_files(model)


def test_an_upload_can_be_repeated_after_a_full_database(served, model, monkeypatch):
    database, models = served.service.database, served.service.models
    own = database.transaction
    files = {file.name: file.read_bytes() for file in model.iterdir() if file.suffix != ".lock"}

    def full():
        monkeypatch.setattr(database, "transaction", own)
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(database, "transaction", full)
    with pytest.raises(sqlite3.OperationalError):
        add_model(models, "mine", files)
    assert models.get(add_model(models, "mine", files)).folder.is_dir()


@pytest.mark.slow
@pytest.mark.filterwarnings("error::FutureWarning")
def test_transformers_models_train_like_small_ones(tmp_path, model, monkeypatch):
    pytest.importorskip("peft")
    start = StoredModel(MODEL, model, MODEL)
    expected = SessionState(start, Lora(), 0).forward_backward(EXAMPLES, "ppo", {})
    monkeypatch.setattr(trained_model, "plain_shape", lambda _: None)
    for rank in (0, 3):
        state, made = SessionState(start, Lora(rank=rank), 5), []
        assert state._model._head_is_last
        head = state._model._whole.get_output_embeddings()
        hook = head.register_forward_hook(
            lambda *given, made=made: made.append(given[2].shape[:-1])
        )
        found = state.forward_backward(EXAMPLES, "ppo", {})
        hook.remove()
        assert sum(map(math.prod, made)) == 5, "logits are computed only for trained tokens"
        for one, other in zip(found.log_probs, expected.log_probs, strict=True):
            assert one == pytest.approx(other, abs=1e-5)
        state.optim_step(STEP)
        requests = [SampleRequest((1, 2, 3), 4, 0), SampleRequest((1, 2), 4, 1)]
        completions = state.sample(requests)
        state.write(tmp_path / "state")
        again = SessionState(start, Lora(rank=rank), 5)
        again.read(tmp_path / "state")
        assert again.sample(requests) == completions
        folder = tmp_path / f"rank-{rank}"
        state.save_model(folder)
        saved = StoredModel("saved", folder, MODEL, (model,) if rank else ())
        served = SessionState(saved, Lora(), 0).sample(requests)
        assert [c.tokens for c in served] == [c.tokens for c in completions]


@pytest.mark.slow
def test_a_saved_adapter_to_a_16_bit_model_is_sampled_as_it_was_trained(
    tmp_path, model, monkeypatch
):
    pytest.importorskip("peft")
    monkeypatch.setattr(trained_model, "plain_shape", lambda _: None)
    base = shutil.copytree(model, tmp_path / "base")
    weights = {name: tensor.bfloat16() for name, tensor in load_file(base / WEIGHTS_FILE).items()}
    save_file(weights, base / WEIGHTS_FILE, metadata={"format": "pt"})
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    trained = SessionState(StoredModel(MODEL, base, MODEL), Lora(rank=3), 5)
    before = trained.forward_backward(EXAMPLES, "cross_entropy", {}).log_probs
    trained.optim_step(replace(STEP, learning_rate=1e-4, weight_decay=0.0))
    trained.save_model(tmp_path / "saved")
    saved = SessionState(StoredModel("saved", tmp_path / "saved", MODEL, (base,)), Lora(), 0)
    expected, sampled = (
        np.concatenate(state.forward_backward(EXAMPLES, "cross_entropy", {}).log_probs)
        for state in (trained, saved)
    )
    error = abs(sampled - expected).max()
    assert error < 0.05 * abs(expected - np.concatenate(before)).max()


@pytest.mark.parametrize("rank", [0, 3])
def test_common_prompts_are_computed_once(model, rank):
    """Three responses to each of two prompts share their prompt's forward pass."""
    examples = [
        TrainingExample((*range(1, 4 + n % 2), 7, n), (0,) * (3 + n % 2) + (1, 1), advantages=None)
        for n in range(6)
    ]
    told, states = [], []
    for shares in (True, False):
        state, read = SessionState(StoredModel(MODEL, model, MODEL), Lora(rank=rank), 5), []
        if not shares:
            state._model._shares_prompts = False
        llama = state._model.llama
        inside = llama.read_behind
        llama.read_behind = lambda *given, r=read, f=inside: r.append(len(given[0])) or f(*given)
        found = state.forward_backward(examples, "cross_entropy", {})
        told.append([*found.log_probs, *found.metrics.values(), *state.optim_step(STEP).values()])
        states.append(read)
    assert states == [[2], []]
    for one, other in zip(*told, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


_OTHER_STEPS = {
    "learning_rate": 2e-2,
    "beta1": 0.5,
    "beta2": 0.5,
    "eps": 1e-2,
    "weight_decay": 0.5,
    "max_grad_norm": 0.1,
}


def test_all_optimizer_settings_affect_the_weights(served, open_session):
    def trained(step):
        session = open_session()
        for number, part in enumerate((EXAMPLES, EXAMPLES[:1], EXAMPLES[1:])):
            _step(session, number, examples=part, step=step)
        weights = _weights(served, session)
        session.delete()
        return weights

    usual = trained(STEP)
    assert _equal(usual, trained(STEP))
    assert _OTHER_STEPS.keys() == set(OptimizerSettings.__dataclass_fields__)
    for name, value in _OTHER_STEPS.items():
        assert not _equal(usual, trained(replace(STEP, **{name: value}))), name


def test_gradients_are_clipped_in_place(model, monkeypatch):
    state, passed = SessionState(StoredModel(MODEL, model, MODEL), Lora(), 0), []
    state.forward_backward(EXAMPLES, "ppo", {})
    gradients = state._gradients
    monkeypatch.setattr(Adam, "step", lambda self, gradients, **settings: passed.extend(gradients))
    norm = state.optim_step(replace(STEP, max_grad_norm=0.5))["grad_norm"]
    assert all(one is other for one, other in zip(passed, gradients, strict=True))
    assert norm > 0.5 == pytest.approx(float(torch.stack([g.norm() for g in passed]).norm()))


@pytest.mark.slow
def test_a_restarted_service_resumes_from_accepted_operations(tmp_path, running_service, model):
    def serve(home):
        return running_service(home, TorchEngine(), model=model).serving()

    def opened(service):
        return connect(service.url, model=MODEL, lora_rank=2, intent="i", policy=QUICK)

    def trained(home, *, breaks):
        for number in range(2):
            with serve(home) as service, opened(service) as session:
                _step(session, 2 * number)
                if breaks:  # between the operations of a step
                    last = 4 * number + 2
                    session.forward_backward(EXAMPLES, loss="cispo", loss_config={}, sequence=last)
            with serve(home) as service, opened(service) as session:
                _step(session, 2 * number + 1, loss="cispo")
                if number == 1:
                    return _weights(service, session)
        raise AssertionError

    whole = trained(tmp_path / "a", breaks=True)
    assert _equal(whole, trained(tmp_path / "b", breaks=False))


def test_a_session_whose_base_has_other_weights_is_refused(tmp_path, running_service, model):
    other = write_micro_model(tmp_path / "other" / MODEL, scale=0.2)
    for folder, complaint in ((model, None), (other, "not those that the session started from")):
        with running_service(tmp_path, TorchEngine(), model=folder).serving() as service:
            policy = RetryPolicy(max_attempts=2, first_delay_seconds=0.001)
            with connect(service.url, model=MODEL, intent="i", policy=policy) as session:
                if complaint is None:
                    _step(session, 0)
                    continue
                with pytest.raises(LanguageModelError, match=complaint):
                    session.forward(EXAMPLES, sequence=2)
