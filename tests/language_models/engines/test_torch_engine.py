"""Generation: independent of the batch, and sampling as requested."""

import itertools
import json
import random
from collections import deque
from dataclasses import replace

import pytest
import torch
from micro_model import write_micro_model

from ratchet.errors import UnknownNameError
from ratchet.language_models.engines import torch_engine
from ratchet.language_models.engines.interface import GenerationRequest, RequestRefusedError
from ratchet.language_models.engines.sampling import (
    Sampler,
    log_probabilities,
    pcg64_uniforms,
)
from ratchet.language_models.engines.torch_engine import TorchEngine
from ratchet.language_models.local import loading
from ratchet.language_models.local import model as local_model
from ratchet.language_models.types import ChatMessage


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_micro_model(tmp_path_factory.mktemp("micro") / "m")


@pytest.fixture(scope="module")
def engine(folder):
    engine = TorchEngine()
    engine.load("m", folder)
    return engine


def request(number=0, text="add 4", **values):
    values = {"max_tokens": 12, "logprobs": True, "top_logprobs": 3, **values}
    return GenerationRequest("m", (ChatMessage("user", text),), number, **values)


def sampler(requests, repetition=None):
    return Sampler(requests, pcg64_uniforms, torch.device("cpu"), repetition)


def varied_requests():
    return [
        request(
            number,
            "x" * (number % 13 + 1),
            temperature=(0.0, 0.7, 1.0, 1.3)[number % 4],
            top_p=(1.0, 0.6)[number % 2],
            max_tokens=1 + number % 40,
        )
        for number in range(48)
    ]


def test_results_do_not_depend_on_the_batch_bit_for_bit(engine):
    requests = varied_requests()
    together = engine.generate(requests)
    assert together == [engine.generate([one])[0] for one in requests]
    assert together == engine.generate(requests[::-1])[::-1]
    assert together[:7] == engine.generate(requests[:7])


def joining_results(engine, requests, seed):
    """Return the results of requests that arrive at random times."""
    generator = random.Random(seed)
    entries = [torch_engine._Entry(request) for request in requests]
    left = deque(entries)

    def take(count):
        arrived = generator.choice((0, 0, 0, 1, 1, 2, 5)) if len(left) < len(entries) else 1
        return [left.popleft() for _ in range(min(count, arrived, len(left)))]

    while left:
        engine.generate_continuously("m", take)
    return [entry.result for entry in entries]


def varied_chats():
    """Return requests that differ in all settings which rows of a batch share or not."""
    schema = json.dumps({"type": "object", "properties": {"a": {"type": "boolean"}}})
    settings = [
        {"repetition_penalty": 1.7},
        {"token_ids": True, "echo": True},
        {"schema": schema},
        {"stop": ("e", "\n")},
    ]
    plain = varied_requests()
    every = zip(plain, itertools.cycle([{}, {}, {}, *settings]), strict=False)
    chats = [replace(each, **values) for each, values in every]
    return [*chats[:20], request(text="x" * 5000), replace(chats[0], schema="{"), *chats[20:]]


@pytest.mark.parametrize("seed", range(5))
def test_results_do_not_depend_on_the_rows_they_join(engine, folder, seed):
    few = TorchEngine(max_batch_size=4)
    few.load("m", folder)
    requests = varied_chats()
    alone = [engine.generate([each])[0] for each in requests]
    assert list(map(str, joining_results(few, requests, seed))) == list(map(str, alone))


def test_chats_join_at_most_once_in_16_tokens(engine, monkeypatch):
    model = engine._loaded["m"].model
    events, start, step = [], model.start, model.step
    monkeypatch.setattr(model, "start", lambda *a: events.append("read") or start(*a))
    monkeypatch.setattr(model, "step", lambda *a: events.append("step") or step(*a))
    entries = [torch_engine._Entry(request(n, max_tokens=100, temperature=0.0)) for n in range(4)]
    arrivals = itertools.chain.from_iterable(([entry], []) for entry in entries)
    engine.generate_continuously("m", lambda _: next(arrivals, []))
    assert [entry.result for entry in entries] == [entries[0].result] * 4
    assert "".join(event[0] for event in events).startswith("r" + 2 * ("s" * 16 + "r") + "s")


def test_few_logits_of_an_echoed_prompt_are_in_memory_at_a_time(engine, monkeypatch):
    echo = request(prompt=tuple(range(2, 22)), echo=True, max_tokens=0)
    complete = engine.generate([echo])
    sizes = []

    def recorded(logits):
        sizes.append(len(logits))
        return log_probabilities(logits)

    monkeypatch.setattr(torch_engine, "log_probabilities", recorded)
    monkeypatch.setattr(
        local_model, "LOGITS_AT_ONCE", 3 * engine._loaded["m"].model.vocabulary_size
    )
    assert engine.generate([echo]) == complete
    assert sizes == [3] * 6 + [1]


def test_of_equally_likely_tokens_those_with_lower_ids_are_listed():
    scores = torch.randint(5, (200,), generator=torch.Generator().manual_seed(1)).double()
    expected = scores.sort(descending=True, stable=True).indices.tolist()
    for count in (0, 1, 7, 60, 200, 300):
        assert torch_engine._most_likely(scores, count) == expected[:count]


def test_the_seed_determines_the_sample(engine):
    first, again, other = engine.generate([request(1), request(1), request(2)])
    assert first == again
    assert first.text != other.text


def test_the_end_token_is_counted_but_not_returned(engine):
    results = engine.generate([request(seed, max_tokens=200) for seed in range(20)])
    ended = [result for result in results if result.finish_reason == "stop"]
    assert ended
    for result in ended:
        assert len(result.tokens) == result.completion_tokens - 1
        assert all(token.token != "<|end|>" for token in result.tokens)


def test_temperature_zero_is_greedy(engine):
    result = engine.generate([request(temperature=0.0)])[0]
    assert all(token.token == token.top[0].token for token in result.tokens)
    assert all(token.logprob == token.top[0].logprob for token in result.tokens)


def test_generation_ends_at_the_limit_and_counts_its_tokens(engine):
    result = engine.generate([request(3, max_tokens=4)])[0]
    assert (result.finish_reason, result.completion_tokens) == ("length", 4)
    assert len(result.tokens) == 4
    assert "".join(token.token for token in result.tokens) == result.text


def test_generation_ends_before_a_stop_text(engine):
    whole = engine.generate([request(5, max_tokens=12)])[0]
    stop = whole.tokens[4].token
    cut = engine.generate([request(5, max_tokens=12, stop=(stop,))])[0]
    assert cut.finish_reason == "stop"
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert "".join(token.token for token in cut.tokens) == cut.text


def test_only_a_prompt_beyond_the_context_is_refused(engine):
    answered, refused = engine.generate([request(), request(text="x" * 2000)])
    assert answered.completion_tokens > 0
    assert isinstance(refused, RequestRefusedError)
    assert (refused.code, refused.param) == ("context_length_exceeded", "messages")
    assert "This model's maximum context length is" in str(refused)  # as clients expect


def test_without_a_limit_generation_ends_at_the_contexts_end(tmp_path):
    engine = TorchEngine()
    engine.load("m", write_micro_model(tmp_path / "m", max_position_embeddings=64))
    results = engine.generate([request(n, "x" * 50, max_tokens=None) for n in range(20)])
    assert max(r.prompt_tokens + r.completion_tokens for r in results) == 64
    assert "length" in {r.finish_reason for r in results}


def test_unloaded_models_are_named(engine):
    with pytest.raises(UnknownNameError, match="isn't loaded"):
        engine.generate([GenerationRequest("n", (ChatMessage("user", "x"),), 0)])


def test_sampling_follows_the_probabilities():
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    requests = [request(seed) for seed in range(4000)]
    drawn, _ = sampler(requests).draw(probabilities.log().expand(4000, 4))
    shares = torch.bincount(drawn, minlength=4) / 4000
    assert torch.allclose(shares.double(), probabilities, atol=0.03)


def test_top_p_keeps_the_smallest_set_with_this_probability():
    logits = torch.tensor([0.15, 0.5, 0.05, 0.3], dtype=torch.float64).log().expand(400, 4)
    drawn, _ = sampler([request(seed, top_p=0.75) for seed in range(400)]).draw(logits)
    assert set(drawn.tolist()) == {1, 3}


def test_settings_of_rows_that_have_left_take_no_time():
    rows = sampler([request(1)])
    rows.append(sampler([request(2, top_p=0.5, temperature=0.0)]))
    assert rows._is_any_cut
    assert rows._is_any_greedy
    rows.keep(torch.tensor([0]))
    assert not rows._is_any_cut
    assert not rows._is_any_greedy


def test_repetition_penalty_equals_that_of_transformers():
    from transformers import RepetitionPenaltyLogitsProcessor

    said, penalties = [[0, 3, 3], [1], [2, 4]], [1.0, 1.4, 0.6]
    requests = [request(repetition_penalty=p, temperature=0.0) for p in penalties]
    before = torch.zeros(3, 6, dtype=torch.bool)
    for row, prompt in enumerate(said):
        before[row, prompt] = True
    rows = sampler(requests, (torch.tensor(penalties, dtype=torch.float64)[:, None], before))
    generator = torch.Generator().manual_seed(3)
    for step in range(8):
        if step == 4:
            rows.keep(torch.tensor([1, 2]))
            said, penalties = said[1:], penalties[1:]
        logits = torch.randn(len(said), 6, generator=generator)
        drawn = rows.draw(logits)[0].tolist()
        for penalty, ids, row, token in zip(penalties, said, logits, drawn, strict=True):
            penalised = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([ids]), row[None])
            assert token == int(penalised[0].argmax())
            ids.append(token)


def test_repetition_penalty_reduces_repetition_and_affects_no_other_request(engine):
    plain, penalised = request(3, temperature=0.0), request(3, temperature=0.0)
    penalised = replace(penalised, repetition_penalty=2.0)
    alone = engine.generate([plain])[0]
    beside = engine.generate([plain, penalised])
    assert beside[0] == alone
    tokens = [[token.token for token in result.tokens] for result in beside]
    assert len(set(tokens[1])) > len(set(tokens[0]))


def test_a_completion_that_fills_the_context_leaves_the_others_alone(tmp_path):
    engine = TorchEngine()
    engine.load("m", write_micro_model(tmp_path / "m", max_position_embeddings=64))
    others = [request(number, max_tokens=45) for number in range(9)]
    long = GenerationRequest("m", (), 0, prompt=(5,) * 60)
    first, *rest = engine.generate([long, *others])
    assert (first.finish_reason, first.completion_tokens) == ("length", 4)
    assert rest == engine.generate(others)
    assert max(result.completion_tokens for result in rest) > 4


@pytest.mark.slow
def test_transformers_models_generate_like_the_plain_one(tmp_path, monkeypatch):
    folder = write_micro_model(tmp_path / "m")
    plain, other = TorchEngine(), TorchEngine()
    plain.load("m", folder)
    monkeypatch.setattr(loading, "plain_shape", lambda _: None)
    other.load("m", folder)
    requests = varied_requests()
    assert [r.text for r in plain.generate(requests)] == [r.text for r in other.generate(requests)]


@pytest.fixture
def in_slots(folder, monkeypatch):
    """Return an engine whose model generates in slots, as on a GPU."""
    monkeypatch.setattr(loading, "plain_shape", lambda _: None)
    engine = TorchEngine(max_batch_size=4)
    engine.load("m", folder)
    monkeypatch.setattr(engine._loaded["m"].model, "uses_slots", True)
    return engine


@pytest.mark.slow
def test_rows_join_in_slots(engine, in_slots):
    requests = varied_chats()
    for result, alone in zip(
        joining_results(in_slots, requests, 0), engine.generate(requests), strict=True
    ):
        assert getattr(result, "text", str(result)) == getattr(alone, "text", str(alone))


@pytest.mark.slow
@pytest.mark.parametrize(("pauses", "sizes"), [(1, [2, 2]), (2, [1, 1, 2])])
def test_a_row_longer_than_the_slots_waits_and_later_ones_behind_it(
    engine, in_slots, monkeypatch, pauses, sizes
):
    model = in_slots._loaded["m"].model
    read, start = [], model.start
    monkeypatch.setattr(model, "start", lambda i, r: read.append(len(i)) or start(i, r))
    lengths = enumerate((200, 20, 300, 30))
    requests = [request(n, "x" * n, max_tokens=most) for n, most in lengths]
    entries = [torch_engine._Entry(each) for each in requests]
    arrivals = iter([entries[:1], *[[]] * pauses, entries[1:]])
    in_slots.generate_continuously("m", lambda _: next(arrivals, []))
    assert [entry.result.text for entry in entries] == [r.text for r in engine.generate(requests)]
    assert read == sizes  # the first two, together or one after the other; the last two


@pytest.mark.slow
def test_a_batch_of_few_long_slots_drains_for_more_rows_of_short_chats(in_slots, monkeypatch):
    model = in_slots._loaded["m"].model
    monkeypatch.setattr(model, "rows_at_once", lambda length, most: 2 if length > 256 else 8)
    rows, step = [], model.step
    monkeypatch.setattr(model, "step", lambda t, c: rows.append(len(t)) or step(t, c))
    waiting = deque(
        torch_engine._Entry(request(prompt=(5, 6, 7), max_tokens=most, temperature=0.0))
        for most in (400, *[60] * 100)
    )
    entries = [*waiting]
    first = iter((1,))
    in_slots.generate_continuously(
        "m",
        lambda count: [waiting.popleft() for _ in range(min(next(first, count), len(waiting)))],
    )
    assert all(entry.result is not None for entry in entries)
    assert max(rows[:400]) == 2
    assert max(rows) == 8


@pytest.mark.slow
def test_a_long_row_of_a_client_that_has_gone_holds_no_others(in_slots):
    finished = []

    class Entry(torch_engine._Entry):
        def deliver(self, result):
            finished.append(self)

    running, gone, short = (
        Entry(request(n, prompt=(5, 6, 7), max_tokens=most, temperature=0.0))
        for n, most in enumerate((110, 900, 3))
    )
    arrivals = iter([[running], [], [gone], [], [short]])

    def take(_):
        arrived = next(arrivals, [])
        gone.is_cancelled |= short in arrived
        return arrived

    in_slots.generate_continuously("m", take)
    assert [entry.request.seed for entry in finished] == [2, 0]
