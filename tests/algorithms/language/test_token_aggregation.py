"""The four aggregations of token losses, and their invariance to micro-batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.algorithms.language.losses import cross_entropy, gspo, kl_loss, ppo_clip
from ratchet.algorithms.language.token_weights import token_weights, weighted_sum

KINDS = {
    "token_mean": 11 / 4,
    "sequence_mean_token_mean": (2 + 9 / 3) / 2,
    "sequence_mean_token_sum": (2 + 9) / 2,
    "constant": 11 / 8,
}
LOSS = torch.tensor([[2.0, float("nan"), 7.0], [1.0, 3.0, 5.0], [4.0, 4.0, 4.0]])
MASK = torch.tensor([[1, 0, 0], [1, 1, 1], [0, 0, 0]])


def _weights(mask, kind):
    return token_weights(mask, kind, constant=8.0)


@pytest.mark.parametrize("kind", KINDS)
def test_the_four_aggregations_of_an_uneven_batch(kind):
    # The third row is fully masked: it is padding and does not count as a row.
    assert weighted_sum(LOSS, _weights(MASK, kind)).item() == pytest.approx(KINDS[kind])
    assert len(set(KINDS.values())) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_empty_and_fully_masked_batches_have_zero_loss(kind):
    for mask in (torch.zeros(0, 3), torch.zeros(2, 3)):
        assert weighted_sum(torch.full_like(mask, 3.0), _weights(mask, kind)).item() == 0


def test_a_missing_constant_is_named():
    with pytest.raises(ValueError, match="constant: got None, expected a number above 0"):
        token_weights(MASK, "constant")


def test_cross_entropy_is_the_mean_over_the_tokens_of_the_mask():
    log_prob = torch.tensor([[-1.0, -2.0, -4.0], [-8.0, -16.0, -32.0]])
    mask = torch.tensor([[0, 1, 1], [1, 0, 0]])
    loss = cross_entropy(log_prob, mask).loss
    mean = weighted_sum(loss, token_weights(mask, "token_mean"))
    assert mean.item() == pytest.approx((2 + 4 + 8) / 3)


def _batch(seed, rows=6, tokens=5):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(rows, tokens, 4, generator=generator).double()
    old = torch.randn(rows, tokens, generator=generator).double() * 0.3 - 1
    advantage = torch.randn(rows, tokens, generator=generator).double()
    mask = (torch.rand(rows, tokens, generator=generator) < 0.6).long()
    return features, old, advantage, mask


def _gradient(kind, batch, parts, *, by_part=False):
    """Return the gradient of the complete loss, accumulated over parts of the rows."""
    features, old, advantage, mask = batch
    parameters = torch.linspace(-1, 1, 4).double().requires_grad_()
    weight, share = _weights(mask, kind), token_weights(mask, "token_mean")
    measured = 0.0
    for rows in parts:
        log_prob = -torch.nn.functional.softplus(features[rows] @ parameters)
        given_ = (log_prob, old[rows], advantage[rows], mask[rows])
        clipped = ppo_clip(*given_, dual_clip=3.0)
        loss = (
            clipped.loss + gspo(*given_).loss + 0.1 * kl_loss(log_prob, old[rows], mask[rows]).loss
        )
        part = _weights(mask[rows], kind) / len(parts) if by_part else weight[rows]
        weighted_sum(loss, part).backward()
        measured += weighted_sum(clipped.metrics["approximate_kl"], share[rows])
    return parameters.grad, measured


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 1000), data=st.data())
@settings(max_examples=10, deadline=None)
def test_gradient_accumulation_equals_the_full_batch(kind, seed, data):
    batch = _batch(seed)
    cuts = sorted(data.draw(st.sets(st.integers(1, 5), max_size=4)))
    order = data.draw(st.permutations(range(6)))
    parts = [order[a:b] for a, b in zip([0, *cuts], [*cuts, 6], strict=True)]
    whole = _gradient(kind, batch, [list(range(6))])
    divided = _gradient(kind, batch, parts)
    torch.testing.assert_close(divided[0], whole[0], rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(divided[1], whole[1], rtol=1e-6, atol=1e-9)


def test_weights_per_micro_batch_would_change_the_gradient():
    batch, parts = _batch(1), [[0, 1], [2, 3, 4, 5]]
    whole, _ = _gradient("token_mean", batch, [list(range(6))])
    by_part, _ = _gradient("token_mean", batch, parts, by_part=True)
    assert not torch.allclose(whole, by_part, rtol=1e-3)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_rows_and_columns_have_zero_weight(kind):
    features, old, advantage, mask = _batch(2)
    wide = [torch.nn.functional.pad(x, (3, 2), value=9.0) for x in (old, advantage)]
    padded = (
        torch.nn.functional.pad(features, (0, 0, 3, 2, 0, 2), value=9.0),
        *(torch.nn.functional.pad(x, (0, 0, 0, 2), value=9.0) for x in wide),
        torch.nn.functional.pad(mask, (3, 2, 0, 2)),
    )
    whole = _gradient(kind, (features, old, advantage, mask), [list(range(6))])
    with_padding = _gradient(kind, padded, [list(range(8))])
    torch.testing.assert_close(with_padding, whole, rtol=1e-6, atol=1e-9)
