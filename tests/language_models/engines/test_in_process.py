"""Completions depend only on their request, and their log-probabilities match the trainer's."""

import gc
import weakref

import numpy as np
import pytest
import torch
from small_model import ASSISTANT, END, FIRST, USER, prompts, requests

from ratchet.errors import DataError, ParameterError
from ratchet.language_models.engines.in_process import InProcessEngine
from ratchet.language_models.engines.rollouts import SampleRequest, log_prob_differences
from ratchet.language_models.engines.sampling import philox_uniforms
from ratchet.language_models.local.slots import columns_for, rows_for


def trainers_log_probs(model, request, completion):
    ids = torch.tensor([[*request.prompt, *completion.tokens]])
    chosen = torch.arange(ids.shape[1])[None] >= len(request.prompt)
    found = model.score(ids, torch.ones_like(ids), chosen, temperature=request.temperature)
    return found.log_probs[chosen].tolist()


def tokens(completions):
    return [completion.tokens for completion in completions]


def test_the_same_requests_give_the_same_bits(plain):
    engine = InProcessEngine(plain)
    assert engine.generate(requests()) == engine.generate(requests())


@pytest.mark.parametrize("size", [1, 3, 8, 256])
def test_rows_that_are_over_make_place_and_nothing_changes(plain, size):
    alone = [InProcessEngine(plain).generate([request])[0] for request in requests()]
    together = InProcessEngine(plain, max_batch_size=size).generate(requests())
    assert tokens(together) == tokens(alone)
    assert [c.finish_reason for c in together] == [c.finish_reason for c in alone]
    assert len({len(completion.tokens) for completion in alone}) > 8
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)


def test_another_order_gives_the_same_answers(plain):
    asked = requests()
    order = np.random.default_rng(0).permutation(len(asked)).tolist()
    engine = InProcessEngine(plain, max_batch_size=10)
    mixed = engine.generate([asked[place] for place in order])
    found = engine.generate(asked)
    assert tokens(mixed) == [found[place].tokens for place in order]


def test_a_batch_stays_full_while_requests_wait(plain, monkeypatch):
    sizes = []
    step = plain.step
    monkeypatch.setattr(plain, "step", lambda t, cache: sizes.append(len(t)) or step(t, cache))
    asked = requests(prompt_count=20, group=4)
    written = InProcessEngine(plain, max_batch_size=8).generate(asked)
    count = sum(len(completion.tokens) for completion in written)
    steps_in_turns = sum(
        max(len(c.tokens) for c in written[start : start + 8]) for start in range(0, 80, 8)
    )
    assert len(sizes) < 0.7 * steps_in_turns
    assert count < sum(sizes) + len(asked) <= 1.25 * count


def test_a_group_reads_its_prompt_once(plain, monkeypatch):
    read = []
    start = plain.start
    monkeypatch.setattr(plain, "start", lambda i, r: read.append(tuple(i.shape)) or start(i, r))
    prompt = prompts(1)[0]
    asked = [SampleRequest(prompt, 5, seed=k) for k in range(8)]
    InProcessEngine(plain).generate(asked)
    assert read == [(1, len(prompt))]


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7}, {"top_p": 0.8}])
def test_log_probs_are_the_trainers(plain, settings):
    asked = requests(**settings)
    written = InProcessEngine(plain, max_batch_size=9).generate(asked)
    pairs = list(zip(asked, written, strict=True))
    sampler = [p for _, completion in pairs for p in completion.log_probs]
    trainer = [p for pair in pairs for p in trainers_log_probs(plain, *pair)]
    found = log_prob_differences(sampler, trainer)
    assert found["max_abs"] <= 1e-4
    assert 0 <= found["kl"] <= 1e-8


@pytest.mark.slow
def test_transformers_writes_the_same(plain, transformers_model):
    ours = InProcessEngine(plain, max_batch_size=7).generate(requests())
    theirs = InProcessEngine(transformers_model, max_batch_size=7).generate(requests())
    assert tokens(ours) == tokens(theirs)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "fewer"), [(3, [3]), (10, [10, 8]), (256, [32, 8])])
def test_slots_write_what_a_growing_cache_writes(transformers_model, monkeypatch, size, fewer):
    from ratchet.language_models.local.slots import SlotCache

    engine = InProcessEngine(transformers_model, max_batch_size=size, end_ids=())
    asked = requests(prompt_count=5, most=160)
    growing = engine.generate(asked)
    monkeypatch.setattr(transformers_model, "uses_slots", True)
    parts, run = [], SlotCache._run

    def record(self, num_rows, num_columns):
        assert num_rows == rows_for(len(self._host_slots), size), "the rows are in the first slots"
        parts.append((num_rows, num_columns))
        return run(self, num_rows, num_columns)

    monkeypatch.setattr(SlotCache, "_run", record)
    in_slots = engine.generate(asked)
    assert tokens(in_slots) == tokens(growing)
    assert [c.finish_reason for c in in_slots] == [c.finish_reason for c in growing]
    for one, other in zip(in_slots, growing, strict=True):
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=1e-5)
    rows, columns = map(dict.fromkeys, zip(*parts, strict=True))
    assert set(columns) == {128, 192}, "attention reads more as rows grow"
    assert list(rows) == fewer, "fewer rows as others end"
    assert engine.generate(asked) == in_slots  # the used slots leave nothing behind


def test_slots_are_used_again_with_the_same_bits_and_freed(transformers_model, monkeypatch):
    monkeypatch.setattr(transformers_model, "uses_slots", True)
    engine = InProcessEngine(transformers_model, max_batch_size=5)
    short, long = (requests(prompt_count=3, most=most) for most in (40, 160))
    alone = engine.generate(short)
    slots = weakref.ref(transformers_model._slots)
    gc.disable()
    try:
        engine.generate(long)
        assert slots() is None, "freed before longer ones are created"
    finally:
        gc.enable()
    slots = transformers_model._slots
    assert engine.generate(short) == alone, "longer slots change no bit"
    assert transformers_model._slots is slots


def test_slots_read_few_numbers_of_positions():
    lengths = [columns_for(length, 1000) for length in range(1, 1009)]
    assert all(read >= length for length, read in enumerate(lengths, 1))
    assert list(dict.fromkeys(lengths)) == [128, 192, 256, 384, 512, 768, 1008]
    assert columns_for(4104, 4096) == 4104


def test_answers_come_as_often_as_they_are_likely(plain):
    prompt = prompts(1)[0]
    count = 4000
    asked = [SampleRequest(prompt, 1, seed=k, temperature=0.8) for k in range(count)]
    drawn = [c.tokens[0] for c in InProcessEngine(plain).generate(asked)]
    ids = torch.tensor([prompt])
    last = torch.arange(len(prompt))[None] == len(prompt) - 1
    wanted = (plain.chosen_logits(ids, last)[0] / 0.8).softmax(-1).detach().numpy()
    seen = np.bincount(drawn, minlength=len(wanted)) / count
    assert np.all(np.abs(seen - wanted) < 5 * np.sqrt(wanted * (1 - wanted) / count) + 1e-9)


def test_each_token_is_picked_by_the_next_number_of_its_stream(plain):
    asked = requests(prompt_count=3)
    for request, written in zip(asked, InProcessEngine(plain).generate(asked), strict=True):
        ids = torch.tensor([[*request.prompt, *written.tokens]])
        before = torch.arange(ids.shape[1])[None] >= len(request.prompt) - 1
        lines = plain.chosen_logits(ids, before)[:-1].double().softmax(-1).cumsum(-1)
        numbers = torch.from_numpy(philox_uniforms([request.seed], 0, len(written.tokens))[0])
        wanted = (lines < numbers[:, None]).sum(-1)
        assert written.tokens == tuple(wanted.tolist())


def test_top_p_keeps_to_the_likeliest(plain):
    prompt = prompts(1)[0]
    asked = [SampleRequest(prompt, 1, seed=k, top_p=0.5) for k in range(500)]
    drawn = {c.tokens[0] for c in InProcessEngine(plain).generate(asked)}
    ids = torch.tensor([prompt])
    last = torch.arange(len(prompt))[None] == len(prompt) - 1
    ordered = plain.chosen_logits(ids, last)[0].softmax(-1).sort(descending=True)
    kept = int((ordered.values.cumsum(0) < 0.5).sum()) + 1
    assert drawn == set(ordered.indices[:kept].tolist())


def test_temperature_0_takes_the_likeliest_whatever_the_seed(plain):
    asked = [
        SampleRequest(prompt, 6, seed=k, temperature=t)
        for prompt in prompts(3)
        for k, t in ((0, 0.0), (1, 0.0), (2, 1.0))
    ]
    found = InProcessEngine(plain).generate(asked)
    for place in range(0, len(asked), 3):
        assert found[place] == found[place + 1]
        token = found[place].tokens[0]
        ids = torch.tensor([asked[place].prompt])
        line = plain.chosen_logits(ids, torch.arange(ids.shape[1])[None] == ids.shape[1] - 1)[0]
        assert token == int(line.argmax())
        assert found[place].log_probs[0] == pytest.approx(
            line.detach().log_softmax(-1)[token].item()
        )


def test_answers_end_at_stop_tokens_at_their_length_and_with_the_context(plain):
    engine = InProcessEngine(plain)
    prompt = prompts(1)[0]
    everything = tuple(range(15))
    (stopped,) = engine.generate([SampleRequest(prompt, 9, seed=1, stop_ids=everything)])
    assert (len(stopped.tokens), stopped.finish_reason) == (1, "stop")
    ends = [c for c in engine.generate(requests()) if c.finish_reason == "stop"]
    assert ends
    assert all(c.tokens[-1] == END and END not in c.tokens[:-1] for c in ends)
    cut = [c for c in engine.generate(requests()) if c.finish_reason == "length"]
    assert cut
    assert all(END not in c.tokens for c in cut)
    long = (USER, *[FIRST] * 250, END, ASSISTANT)
    found = engine.generate([SampleRequest(long, 50, seed=k) for k in range(20)])
    assert max(len(completion.tokens) for completion in found) == 256 - len(long)


@pytest.mark.slow
def test_an_answer_that_ends_with_the_context_leaves_longer_ones_alone(plain):
    plain.end_ids = ()
    asked = [SampleRequest((USER, *[FIRST] * place), 300, seed=0) for place in (250, *range(8))]
    found = InProcessEngine(plain).generate(asked)
    assert [len(c.tokens) for c in found] == [256 - len(request.prompt) for request in asked]
    assert tokens(found) == [tokens(InProcessEngine(plain).generate([one]))[0] for one in asked]


def test_long_answers_go_on_with_their_stream(plain):
    """More tokens than are sampled in advance, in rows that arrived at different times."""
    never_end = [SampleRequest(p, 100, seed=k) for k, p in enumerate(prompts(40))]
    small = InProcessEngine(plain, max_batch_size=6).generate(never_end)
    large = InProcessEngine(plain).generate(never_end)
    assert tokens(small) == tokens(large)
    assert max(len(completion.tokens) for completion in small) > 70


def test_what_cannot_be_asked_is_refused(plain):
    with pytest.raises(DataError, match=r"prompt: got 256 tokens.*context has 256"):
        InProcessEngine(plain).generate([SampleRequest((FIRST,) * 256, 1, seed=0)])
    for token in (-1, plain.vocabulary_size):
        with pytest.raises(DataError, match=f"got token {token} in the prompt"):
            InProcessEngine(plain).generate([SampleRequest((FIRST, token), 1, seed=0)])
        ids, ones = torch.tensor([[FIRST, token]]), torch.ones(1, 2)
        with pytest.raises(DataError, match=f"input_ids: got token {token}"):
            plain.score(ids, ones, torch.tensor([[0, 1]]))
    for wrong in (
        {"max_tokens": 0},
        {"seed": -1},
        {"seed": 2**64},
        {"temperature": -1.0},
        {"top_p": 0.0},
    ):
        with pytest.raises(ParameterError, match=next(iter(wrong))):
            SampleRequest(**{"prompt": (1,), "max_tokens": 1, "seed": 0, **wrong})
    with pytest.raises(ParameterError, match="prompt"):
        SampleRequest((), 1, seed=0)
    assert InProcessEngine(plain).generate([]) == []


def test_an_engine_reads_the_weights_as_they_are(plain):
    engine = InProcessEngine(plain)
    before = engine.generate(requests())
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(0.05)
    engine.update(plain)
    assert tokens(engine.generate(requests())) != tokens(before)


def test_differences_of_log_probs_are_measured():
    found = log_prob_differences([-1.0, -2.0], [-1.5, -2.0])
    assert found["mean_abs"] == pytest.approx(0.25)
    assert found["max_abs"] == pytest.approx(0.5)
    assert found["kl"] == pytest.approx((np.exp(-0.5) - 1 + 0.5) / 2)
    assert log_prob_differences([], []) == {"mean_abs": 0.0, "max_abs": 0.0, "kl": 0.0}
    with pytest.raises(DataError, match="got 1 of the sampler and 2"):
        log_prob_differences([1.0], [1.0, 2.0])


def test_the_estimate_of_the_divergence_has_the_right_mean():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.4, 0.4, 0.2])
    counts = [5, 3, 2]
    found = log_prob_differences(np.repeat(np.log(p), counts), np.repeat(np.log(q), counts))
    assert found["kl"] == pytest.approx(float((p * np.log(p / q)).sum()))
