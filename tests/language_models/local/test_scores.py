"""Log-probabilities are those of tokens given the previous ones, for every layout."""

import pytest
import torch
from small_model import prompts
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ratchet.errors import DataError
from ratchet.language_models.local import model as model_module
from ratchet.models.prefix_sharing import share_prefixes

LAYOUTS = ("right", "left", "holes")


def lay(rows, layout, width=17, pad=0):
    """Ids, mask, and the positions of all tokens but the first."""
    ids = torch.full((len(rows), width), pad)
    mask = torch.zeros(len(rows), width, dtype=torch.int64)
    chosen = torch.zeros(len(rows), width, dtype=torch.bool)
    generator = torch.Generator().manual_seed(5)
    for number, row in enumerate(rows):
        places = {
            "right": torch.arange(len(row)),
            "left": torch.arange(width - len(row), width),
            "holes": torch.randperm(width, generator=generator)[: len(row)].sort().values,
        }[layout]
        ids[number, places] = torch.tensor(row)
        mask[number, places] = 1
        chosen[number, places[1:]] = True
    return ids, mask, chosen


def scores(model, layout, pad=0, **options):
    """Log-probabilities of the tokens in order, and the gradients of a function of them."""
    ids, mask, chosen = lay(prompts(5), layout, pad=pad)
    found = model.score(ids, mask, chosen, **options)
    values = found.log_probs[chosen]
    weights = torch.linspace(-1, 1, len(values))
    gradients = torch.autograd.grad((values * weights).sum(), model.parameters())
    assert not found.log_probs[~chosen].any()
    return values.detach(), gradients


def by_hand(model, row, temperature=1.0):
    """Log-probabilities [T − 1, V] of a single row."""
    ids = torch.tensor([row[:-1]])
    logits = model.chosen_logits(ids, torch.ones_like(ids) > 0)
    return (logits.double() / temperature).log_softmax(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_scores_are_the_log_softmax_of_the_token_before(plain, temperature):
    values, _ = scores(plain, "right", temperature=temperature)
    rows = prompts(5)
    wanted = [
        line[token]
        for row in rows
        for token, line in zip(row[1:], by_hand(plain, row, temperature), strict=True)
    ]
    torch.testing.assert_close(values.double(), torch.stack(wanted), rtol=0, atol=2e-6)


def test_entropy_is_that_of_the_distribution_drawn_from(plain):
    ids, mask, chosen = lay(prompts(5), "left")
    found = plain.score(ids, mask, chosen, temperature=0.6, entropy=True, entropy_gradient=True)
    lines = torch.cat([by_hand(plain, row, 0.6) for row in prompts(5)])
    wanted = -(lines.exp() * lines).sum(-1)
    assert found.entropy is not None
    torch.testing.assert_close(found.entropy[chosen].double(), wanted, rtol=0, atol=1e-5)
    assert found.entropy.requires_grad
    measured = plain.score(ids, mask, chosen, temperature=0.6, entropy=True).entropy
    assert torch.equal(measured, found.entropy)
    assert not measured.requires_grad


@pytest.mark.parametrize("layout", ["left", "holes"])
@pytest.mark.parametrize("pad", [0, 1, 9])
def test_padding_weighs_nothing_wherever_it_is_and_whatever_it_says(plain, layout, pad):
    values, gradients = scores(plain, "right")
    others, other_gradients = scores(plain, layout, pad=pad)
    assert torch.equal(values, others)
    for one, other in zip(gradients, other_gradients, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_weigh_nothing_for_one_another(plain, layout):
    ids, mask, chosen = lay(prompts(5), layout)
    together = plain.score(ids, mask, chosen).log_probs
    alone = torch.cat(
        [
            plain.score(ids[k : k + 1], mask[k : k + 1], chosen[k : k + 1]).log_probs
            for k in range(5)
        ]
    )
    torch.testing.assert_close(together, alone, rtol=0, atol=2e-6)


def test_logits_are_made_at_chosen_places_only(plain, monkeypatch):
    counts = []
    make = plain.llama.logits

    def count(hidden):
        counts.append(hidden.shape)
        return make(hidden)

    monkeypatch.setattr(plain.llama, "logits", count)
    ids, mask, chosen = lay(prompts(5), "left")
    chosen[:, :-2] = False
    plain.score(ids, mask, chosen)
    assert [tuple(shape) for shape in counts] == [(int(chosen.sum()), 16)]


def test_hidden_states_have_the_layout_that_was_given(plain):
    states = {}
    for layout in LAYOUTS:
        ids, mask, _ = lay(prompts(5), layout)
        found = plain.hidden(ids, mask)
        assert not found[mask == 0].any()
        states[layout] = found[mask == 1]
    assert torch.equal(states["left"], states["right"])
    assert torch.equal(states["holes"], states["right"])
    row = torch.tensor([prompts(5)[0]])
    alone = plain.hidden(row)[0]
    torch.testing.assert_close(states["right"][: row.shape[1]], alone, rtol=0, atol=1e-5)


def test_nothing_chosen_is_a_gradient_of_0(plain):
    """A part of a batch may have no chosen tokens; it can be summed like the others."""
    ids, mask, chosen = lay(prompts(5), "right")
    for nothing in (mask, mask * 0):
        found = plain.score(ids, nothing, chosen & False, entropy=True)
        assert found.log_probs.shape == ids.shape
        assert not found.log_probs.any()
        assert found.entropy is not None
        gradients = torch.autograd.grad(found.log_probs.sum(), plain.parameters())
        assert not any(gradient.any() for gradient in gradients)


def test_rows_that_are_all_padding_weigh_nothing(plain):
    ids, mask, chosen = lay(prompts(5), "right")
    wanted = plain.score(ids, mask, chosen).log_probs
    more = [torch.cat([tensor, tensor[:2] * 0]) for tensor in (ids, mask, chosen)]
    found = plain.score(*more).log_probs
    torch.testing.assert_close(found[:5], wanted, rtol=0, atol=1e-6)
    assert not found[5:].any()


def test_a_place_with_nothing_before_it_is_refused(plain):
    ids, mask, chosen = lay(prompts(5), "left")
    with pytest.raises(DataError, match="padding, or the first token of a row"):
        plain.score(ids, mask, mask)
    with pytest.raises(DataError, match="padding, or the first token of a row"):
        plain.score(ids, mask, ~chosen & (mask == 0))
    with pytest.raises(DataError, match=r"a row of 300 tokens.*context has 256"):
        plain.score(*(torch.ones(1, 300, dtype=torch.int64) for _ in range(2)), torch.zeros(1, 300))


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_transformers_says_the_same(plain, transformers_model, layout):
    values, _ = scores(plain, layout, temperature=0.7)
    others, _ = scores(transformers_model, layout, temperature=0.7)
    torch.testing.assert_close(values, others, rtol=0, atol=1e-5)
    ids, mask, _ = lay(prompts(5), layout)
    ours, theirs = plain.hidden(ids, mask), transformers_model.hidden(ids, mask)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_what_rows_share_is_read_once_and_changes_nothing(plain, monkeypatch):
    """Completions of prompts of several lengths, one of which extends another."""
    given = prompts(3)
    shared = [given[0][:6], given[1][:3], given[1][:5]]
    rows = [prompt + given[2][at : at + 4 + at % 3] for at, prompt in enumerate(shared * 3)]
    ids, mask, chosen = lay(rows, "left")
    for number, row in enumerate(rows):
        chosen[number, : 17 - len(row) + len(shared[number % 3])] = False
    chosen[4, -2] = False

    def scores():
        found = plain.score(ids, mask, chosen, entropy=True)
        weights = torch.linspace(-1, 1, found.log_probs.numel()).view(ids.shape)
        gradients = torch.autograd.grad((found.log_probs * weights).sum(), plain.parameters())
        return found.log_probs.detach(), found.entropy.detach(), gradients

    read = []
    inside = plain.llama.read_behind

    def noted(first, of_row, lengths, rest):
        read.append((first.numel() + rest.numel(), len(first)))
        return inside(first, of_row, lengths, rest)

    monkeypatch.setattr(plain.llama, "read_behind", noted)
    once = scores()
    monkeypatch.setattr("ratchet.models.prefix_sharing.share_prefixes", lambda *_: None)
    each = scores()
    assert [prompts for _, prompts in read] == [3]
    torch.testing.assert_close(once, each, atol=2e-6, rtol=1e-4)


def test_rows_that_share_little_are_read_as_they_are(plain):
    ids, _, chosen = lay(prompts(5), "right")
    assert share_prefixes(ids[:, :-1], chosen[:, 1:]) is None
    chosen[:, :5] = False
    assert share_prefixes(ids[:, :-1], chosen[:, 1:]) is None
    assert share_prefixes(ids[:1, :-1], chosen[:1, 1:]) is None


class MostLogits(TorchDispatchMode):
    """Records the largest number of rows of logits that an operation returns, backward too."""

    def __init__(self, vocabulary_size):
        super().__init__()
        self.vocabulary_size, self.rows = vocabulary_size, 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.shape[-1:] == (self.vocabulary_size,):
                self.rows = max(self.rows, leaf.shape[:-1].numel())
        return result


@pytest.mark.parametrize("name", ["plain", "transformers_model"])
def test_no_tensor_has_the_logits_of_more_than_a_chunk(request, monkeypatch, name):
    model = request.getfixturevalue(name)
    ids, mask, chosen = lay(prompts(40), "right")

    def score():
        with MostLogits(model.vocabulary_size) as logits:
            scores = model.score(ids, mask, chosen, entropy=True, entropy_gradient=True)
            total = (scores.log_probs + 0.1 * scores.entropy).sum()
            return scores, torch.autograd.grad(total, model.parameters()), logits.rows

    expected, expected_gradients, rows = score()
    assert rows == chosen.sum()
    monkeypatch.setattr(model_module, "LOGITS_AT_ONCE", 40 * model.vocabulary_size)
    scores, gradients, rows = score()
    assert rows == 40
    torch.testing.assert_close(scores.log_probs, expected.log_probs, rtol=0, atol=1e-5)
    torch.testing.assert_close(scores.entropy, expected.entropy, rtol=0, atol=1e-5)
    for one, other in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_large_models_on_a_gpu_should_recompute_activations(plain, monkeypatch):
    assert not plain.should_recompute_activations
    monkeypatch.setattr(plain, "device", torch.device("cuda"))
    assert not plain.should_recompute_activations
    monkeypatch.setattr(model_module, "RECOMPUTED_FROM", plain.num_parameters)
    assert plain.should_recompute_activations
