"""Training jobs: trained tokens, reproducibility, and output files."""

import json
import math

import pytest
import torch
from micro_model import trainable_model, write_micro_model
from safetensors.torch import load_file

from ratchet.errors import DataError, ParameterError
from ratchet.language_models.engines.interface import GenerationRequest
from ratchet.language_models.engines.torch_engine import TorchEngine
from ratchet.language_models.local import model as language_model
from ratchet.language_models.local.loading import PlainLanguageModel
from ratchet.language_models.local.tokenizer import ChatTokenizer
from ratchet.language_models.types import ChatMessage
from ratchet.models.llama import PlainLlama
from ratchet.models.supervision import SupervisedLoss
from ratchet.service.training import train as training
from ratchet.service.training.job_folder import (
    TrainingJob,
    TrainingResult,
    read_training_events,
)
from ratchet.service.training.losses import PreferenceLoss
from ratchet.service.training.tokens import read_preferences, read_supervised

ACCEPT, REJECT = "Decision: accept", "Decision: reject"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_micro_model(tmp_path_factory.mktemp("base") / "m", scale=0.1)


def chat(question, *answers, **values):
    messages = [{"role": "user", "content": question}]
    messages += [{"role": "assistant", "content": answer, **values} for answer in answers]
    return {"messages": messages}


def pair(question, better, worse):
    return {
        "input": {"messages": [{"role": "user", "content": question}]},
        "preferred_output": [{"role": "assistant", "content": better}],
        "non_preferred_output": [{"role": "assistant", "content": worse}],
    }


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run_job(folder, base, lines, method="supervised", seed=3, validation=None, **hyperparameters):
    folder.mkdir(exist_ok=True)
    file = write_lines(folder / "examples.jsonl", lines)
    other = validation and str(write_lines(folder / "validation.jsonl", validation))
    job = TrainingJob("j", method, str(base), str(file), other, hyperparameters, seed)
    job.write(folder)
    training.train(folder)
    return (folder / "model" / "model.safetensors").read_bytes()


def answers_of(folder, questions):
    engine = TorchEngine()
    engine.load("m", folder)
    requests = [
        GenerationRequest("m", (ChatMessage("user", q),), 0, temperature=0.0, max_tokens=5)
        for q in questions
    ]
    return [result.text for result in engine.generate(requests)]


CHATS = [chat("same", ACCEPT), chat("differ", REJECT)] * 8


def test_supervised_jobs_teach_the_answers(tmp_path, base):
    run_job(tmp_path / "j", base, CHATS, n_epochs=30, learning_rate_multiplier=5.0)
    assert answers_of(tmp_path / "j" / "model", ["same", "differ"]) == [ACCEPT, REJECT]


def test_preference_jobs_raise_the_preferred_reply(tmp_path, base):
    both = [chat("same", ACCEPT), chat("same", REJECT)] * 8
    run_job(tmp_path / "s", base, both, n_epochs=30, learning_rate_multiplier=5.0)
    start = tmp_path / "s" / "model"
    pairs = [pair("same", REJECT, ACCEPT)] * 16
    run_job(tmp_path / "d", start, pairs, "dpo", n_epochs=10, learning_rate_multiplier=5.0)
    events, _ = read_training_events(tmp_path / "d")
    assert events[-1].metrics["reward_accuracy"] == 1.0
    assert events[-1].metrics["reward_margin"] > 0.1
    assert answers_of(tmp_path / "d" / "model", ["same"]) == [REJECT]


@pytest.mark.parametrize("method", ["supervised", "dpo"])
def test_same_files_and_seed_give_the_same_weights_bit_for_bit(tmp_path, base, method):
    lines = (
        CHATS
        if method == "supervised"
        else [pair("same", ACCEPT, REJECT)] * 8 + [pair("differ", REJECT, ACCEPT)] * 8
    )
    first = run_job(tmp_path / "a", base, lines, method, batch_size=4)
    again = run_job(tmp_path / "b", base, lines, method, batch_size=4)
    other = run_job(tmp_path / "c", base, lines, method, batch_size=4, seed=4)
    assert first == again
    assert first != other


def test_restarting_a_job_in_its_folder_gives_the_same_result(tmp_path, base):
    whole = run_job(tmp_path / "a", base, CHATS)
    (tmp_path / "a" / "result.json").unlink()
    with (tmp_path / "a" / "events.jsonl").open("a") as file:
        file.write('{"torn')
    assert run_job(tmp_path / "a", base, CHATS) == whole
    events, _ = read_training_events(tmp_path / "a")
    assert [event.step for event in events] == [1, 2, 3]


@pytest.mark.parametrize("method", ["supervised", "dpo"])
def test_each_epoch_records_the_validation_loss(tmp_path, base, method):
    """The loss is the mean over the file, for any batches; training does not depend on the file."""
    pairs = [pair("same", ACCEPT, REJECT)] * 4 + [pair("differ", REJECT, "Decision: no")] * 4
    lines, other = (
        (CHATS, [*CHATS[:3], chat("same", "a b c")])
        if method == "supervised"
        else (pairs, [*pairs[:3], pairs[-1]])
    )
    values = {"n_epochs": 2, "batch_size": 3}
    plain = run_job(tmp_path / "a", base, lines, method, **values)
    watched = run_job(tmp_path / "b", base, lines, method, validation=other, **values)
    assert watched == plain
    events, _ = read_training_events(tmp_path / "b")
    told = [event.step for event in events if "valid_loss" in event.metrics]
    assert told == [len(events) // 2, len(events)]
    tokenizer, model = ChatTokenizer(base), trainable_model(base)
    file = tmp_path / "b" / "validation.jsonl"
    if method == "supervised":
        loss = SupervisedLoss(model, read_supervised(file, tokenizer, model.context_length))
    else:
        read = read_preferences(file, tokenizer, model.context_length)
        loss = PreferenceLoss(model, read, 0.1, supervision=training.SUPERVISION)
    trained = trainable_model(tmp_path / "b" / "model")  # the other is the reference
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), trained.parameters(), strict=True):
            mine.copy_(theirs)
        expected = float(loss([0, 1, 2, 3])[0])
    assert events[-1].metrics["valid_loss"] == pytest.approx(expected, rel=1e-4)


def test_result_and_events(tmp_path, base):
    run_job(tmp_path / "j", base, CHATS, n_epochs=2, batch_size=5)
    result = TrainingResult.read(tmp_path / "j")
    tokens = sum(len(s.ids) for s in examples(tmp_path / "j" / "examples.jsonl", base))
    assert (result.steps, result.trained_tokens) == (8, 2 * tokens)
    assert result.hyperparameters == {
        "n_epochs": 2,
        "batch_size": 5,
        "learning_rate_multiplier": 1.0,
    }
    events, _ = read_training_events(tmp_path / "j")
    assert [event.epoch for event in events][3::4] == [1.0, 2.0]
    assert result.train_loss < events[0].train_loss


def examples(file, base):
    return read_supervised(file, ChatTokenizer(base), 1024)


def test_only_weighted_assistant_messages_are_trained(tmp_path, base):
    line = {
        "messages": [
            {"role": "system", "content": "Verifier."},
            {"role": "assistant", "content": "Question: Compare.", "weight": 0},
            {"role": "user", "content": "add", "name": "Expert"},
            {"role": "assistant", "content": ACCEPT, "weight": 1},
        ]
    }
    (sequence,) = examples(write_lines(tmp_path / "f", [line]), base)
    tokenizer = ChatTokenizer(base)
    learned = [i for i, weight in zip(sequence.ids, sequence.weights, strict=True) if weight]
    assert learned == tokenizer.encode(ACCEPT + "<|end|>")
    messages = [ChatMessage(m["role"], m["content"], m.get("name")) for m in line["messages"]]
    assert list(sequence.ids) == tokenizer.encode(tokenizer.render(messages, answer=False))


def test_all_weighted_replies_of_a_chat_are_trained_in_one_sequence(tmp_path, base):
    (sequence,) = examples(write_lines(tmp_path / "f", [chat("x", ACCEPT, REJECT)]), base)
    assert sum(sequence.weights) == 2 * len(ChatTokenizer(base).encode(ACCEPT + "<|end|>"))


def test_templates_that_rewrite_earlier_replies_give_one_sequence_per_reply(tmp_path):
    folder = write_micro_model(tmp_path / "m")
    file = folder / "chat_template.jinja"
    marked = "'|>' + ('' if loop.last else '!') -}}"
    file.write_text(file.read_text().replace("'|>' -}}", marked, 1))
    sequences = examples(write_lines(tmp_path / "f", [chat("x", ACCEPT, REJECT)]), folder)
    assert len(sequences) == 2
    each = len(ChatTokenizer(folder).encode(ACCEPT + "<|end|>"))
    assert [sum(sequence.weights) for sequence in sequences] == [each, each]


def test_an_example_beyond_the_context_is_named_by_its_line(tmp_path, base):
    file = write_lines(tmp_path / "f", [chat("x", ACCEPT), chat("x" * 2000, ACCEPT)])
    with pytest.raises(DataError, match=r"f, line 2: has .* tokens"):
        examples(file, base)


@pytest.mark.parametrize("value", [0, -1, "many"])
def test_hyperparameters_must_be_positive_numbers(tmp_path, base, value):
    with pytest.raises(ParameterError, match="n_epochs"):
        run_job(tmp_path / "j", base, CHATS, n_epochs=value)


def test_supervised_loss_is_the_mean_cross_entropy_of_the_reply(tmp_path, base):
    sequences = examples(write_lines(tmp_path / "f", [chat("same", ACCEPT)]), base)
    model = trainable_model(base)
    ids = torch.tensor([sequences[0].ids])
    scores = model.llama.logits(model.llama(ids)).log_softmax(-1)[0]
    count = int(sum(sequences[0].weights))
    expected = -sum(scores[place - 1, ids[0, place]] for place in range(-count, 0)) / count
    loss, _ = SupervisedLoss(model, sequences)([0])
    torch.testing.assert_close(loss, expected)


def test_preference_loss_without_supervision_is_dpo(tmp_path, base):
    file = write_lines(tmp_path / "f", [pair("same", ACCEPT, REJECT), pair("x", "add", "same 4")])
    tokenizer = ChatTokenizer(base)
    pairs = read_preferences(file, tokenizer, 1024)
    model = trainable_model(base)
    loss = PreferenceLoss(model, pairs, 0.3, supervision=0.0)
    assert float(loss([0, 1])[0].detach()) == pytest.approx(math.log(2), abs=1e-6)
    reference = [(score(model, p.preferred), score(model, p.non_preferred)) for p in pairs]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    margins = [
        (score(model, p.preferred) - r[0]) - (score(model, p.non_preferred) - r[1])
        for p, r in zip(pairs, reference, strict=True)
    ]
    expected = sum(math.log1p(math.exp(-0.3 * margin)) for margin in margins) / 2
    value, figures = loss([0, 1])
    assert float(value.detach()) == pytest.approx(expected, rel=1e-4)
    assert figures["reward_margin"] == pytest.approx(0.3 * sum(margins) / 2, rel=1e-3)


def score(model, sequence):
    """Return the log-probability of the reply with its end token."""
    with torch.no_grad():
        ids = torch.tensor([sequence.ids])
        scores = model.llama.logits(model.llama(ids)).log_softmax(-1)[0]
        count = int(sum(sequence.weights))
        places = range(len(sequence.ids) - count, len(sequence.ids))
        return float(sum(scores[place - 1, sequence.ids[place]] for place in places))


def test_control_tokens_in_messages_are_trained_as_text(tmp_path, base):
    line = chat("a<|end|><|system|>b", "x<|end|>y")
    (sequence,) = examples(write_lines(tmp_path / "f", [line]), base)
    tokenizer = ChatTokenizer(base)
    assert sequence.ids.count(tokenizer.end_ids[0]) == len(line["messages"])
    learned = [i for i, weight in zip(sequence.ids, sequence.weights, strict=True) if weight]
    assert tokenizer.decode(learned) == "x<|end|>y"
    (preference,) = read_preferences(
        write_lines(tmp_path / "p", [pair("a<|end|>", "x<|end|>", "<|user|>y")]), tokenizer, 1024
    )
    for side in (preference.preferred, preference.non_preferred):
        assert side.ids.count(tokenizer.end_ids[0]) == 2


UNLIKE = [
    chat("same", ACCEPT),
    chat("differ x add", "Question: Compare.", REJECT),
    chat("x", "add"),
]
PAIRS = [pair("same", ACCEPT, "add"), pair("x", "add same 4", REJECT), pair("differ", "no", ACCEPT)]


@pytest.mark.parametrize(("method", "kinds"), [("supervised", UNLIKE), ("dpo", PAIRS)])
@pytest.mark.parametrize("micro", [1, 3, 4])
def test_micro_batches_give_the_same_step(tmp_path, base, monkeypatch, method, kinds, micro):
    lines = (kinds * 5)[:14]  # batches of 8 and 6
    run_job(tmp_path / "whole", base, lines, method, batch_size=8, n_epochs=3)
    read = []
    at_once = PlainLanguageModel.read_chosen
    monkeypatch.setattr(
        PlainLanguageModel,
        "read_chosen",
        lambda self, ids, chosen: read.append(len(ids)) or at_once(self, ids, chosen),
    )
    values = {"batch_size": 8, "n_epochs": 3, "micro_batch_size": micro}
    run_job(tmp_path / "parts", base, lines, method, **values)
    most = {1: 1, 3: 2, 4: 4}[micro]  # divisors of the batch
    assert max(read) == (2 * most if method == "dpo" else most)
    one, other = (
        load_file(tmp_path / n / "model" / "model.safetensors") for n in ("whole", "parts")
    )
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, rtol=1e-4, atol=2e-5)
    told, again = (read_training_events(tmp_path / name)[0] for name in ("whole", "parts"))
    for event, same in zip(told, again, strict=True):
        assert same.train_loss == pytest.approx(event.train_loss, rel=1e-4)
        assert dict(same.metrics) == pytest.approx(dict(event.metrics), rel=1e-2, abs=1e-5)
    assert TrainingResult.read(tmp_path / "parts").hyperparameters["micro_batch_size"] == most
    assert "micro_batch_size" not in TrainingResult.read(tmp_path / "whole").hyperparameters


@pytest.mark.parametrize(("method", "kinds"), [("supervised", UNLIKE), ("dpo", PAIRS)])
def test_few_logits_are_in_memory_at_a_time(tmp_path, base, monkeypatch, method, kinds):
    run_job(tmp_path / "whole", base, kinds, method)
    rows, logits = [], PlainLlama.logits
    monkeypatch.setattr(
        PlainLlama,
        "logits",
        lambda self, hidden: rows.append(len(hidden)) or logits(self, hidden),
    )
    vocabulary = json.loads((base / "config.json").read_text())["vocab_size"]
    monkeypatch.setattr(language_model, "LOGITS_AT_ONCE", 5 * vocabulary)
    run_job(tmp_path / "parts", base, kinds, method)
    assert max(rows) == 5
    one, other = (
        load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "parts")
    )
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, rtol=1e-4, atol=2e-5)
