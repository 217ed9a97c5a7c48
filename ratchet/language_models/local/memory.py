"""The number of tokens of a training step that fit into a device's memory at a time.

A function of the models and the device's total memory only: equal devices train in equal parts.
Counted are keys and values of generation; weights; gradients and two float32 moments of the trained
ones, with float32 masters and their gradients if these are rounded; a chunk of logits; and the
activations of each token.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ratchet.language_models.local.model import LOGITS_AT_ONCE, LanguageModel
from ratchet.models.layer_shape import FLOAT32_BYTES
from ratchet.models.llama_shape import LARGEST_PLAIN_MODEL

_LOGIT_COPIES = 9  # float32: scaled, log-probabilities, probabilities, entropies, gradients
CACHE_SHARE = 12
"""The share of the memory for keys and values of generation is one part of so many."""
_USABLE = 0.9  # the rest: the driver's context, fragments, one tensor's temporary copies
_MARGIN = 1.5  # layers with more norms, or attention that is not fused, keep more


def device_memory(model: LanguageModel) -> int | None:
    """Return a model's part of its GPU's memory, in bytes; None on a CPU, and for small models."""
    if model.device.type != "cuda" or model.num_parameters <= LARGEST_PLAIN_MODEL:
        return None
    total = int(torch.cuda.get_device_properties(model.device).total_memory)
    return total // model.num_on_device


def kept_bytes(model: LanguageModel) -> int:
    """Return the bytes that the layers keep of a token for the backward pass."""
    shape, size = model.shape, model.dtype.itemsize
    layer = size * shape.width if model.recomputes_activations else _layer_bytes(model)
    return shape.layers * layer + shape.norm_bytes(size)


def fitting_tokens(
    memory: int,
    model: LanguageModel,
    trained: Iterable[Tensor],
    models: Iterable[LanguageModel] = (),
    *,
    reads: int = 1,
    processes: int = 1,
) -> int:
    """Return the number of tokens, padding included, that a step can read at a time; at least 1.

    Parameters
    ----------
    memory
        The model's part of the device's bytes.
    model
        The trained model. Of frozen weights that other models share, a part is counted.
    trained
        The weights that an optimizer updates.
    models
        All models on the device; they may share weights.
    reads
        The number of times that the loss reads a token with gradients.
    processes
        The number of processes that share all weights. Each also samples with complete weights;
        the first one's device has those of the run's main process too.
    """
    learned = list(trained)
    all_weights = [*learned, *(each for one in (model, *models) for each in one.all_parameters())]
    weights = {id(each): each for each in all_weights}
    frozen = [each for each in model.all_parameters() if id(each) not in set(map(id, learned))]
    stored = sum(map(_weight_bytes, weights.values())) + sum(map(_learning_bytes, learned))
    stored -= sum(map(_weight_bytes, frozen)) * (len(model.sharing) - 1) // len(model.sharing)
    stored //= processes
    if processes > 1:
        stored += 2 * sum(map(_weight_bytes, model.all_parameters()))
    free = (
        (_USABLE - 1 / CACHE_SHARE) * memory
        - stored
        - _LOGIT_COPIES * FLOAT32_BYTES * LOGITS_AT_ONCE
    )
    # a layer's activations are computed again, and have gradients
    token = kept_bytes(model) + 2 * _layer_bytes(model)
    if model.keeps_logits:
        token += 4 * model.dtype.itemsize * model.vocabulary_size
    return max(1, int(free / (_MARGIN * reads * token)))


def _layer_bytes(model: LanguageModel) -> int:
    is_adapted = sum(each.numel() for each in model.parameters()) < model.num_parameters
    return model.shape.layer_bytes(model.dtype.itemsize, is_adapted=is_adapted)


def _weight_bytes(weight: Tensor) -> int:
    return weight.numel() * weight.element_size()


def _learning_bytes(weight: Tensor) -> int:
    """Return the bytes of a weight's gradient, its moments, and its master with its gradient."""
    master = 0 if weight.dtype == torch.float32 else 2 * FLOAT32_BYTES
    return weight.numel() * (weight.element_size() + 2 * FLOAT32_BYTES + master)
