"""Protobuf messages of the wire: passes over examples, their results, and samples.

Only the fields used here are declared; others are skipped. Maps are messages of a key and a value,
as protobuf encodes them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ratchet.errors import DataError
from ratchet.language_models.engines.rollouts import Completion

PROTOBUF = "application/x-protobuf"
_PACKAGE = "tinker_public"
_TEXT, _BYTES, _MESSAGE = 9, 12, 11
_DOUBLE, _INT32, _INT64, _BOOL = 1, 5, 3, 8
_FLOAT32, _INTEGER64, _INTEGER32 = 1, 2, 3
_NUMPY = {_FLOAT32: np.float32, _INTEGER64: np.int64, _INTEGER32: np.int32}
_STOP, _LENGTH = 0, 1

_Field = tuple[str, int, int | str, bool]
_MESSAGES: dict[str, tuple[_Field, ...]] = {
    "Tensor": (
        ("dense", 1, _BYTES, False),
        ("sparse_csr", 2, _BYTES, False),
        ("dtype", 3, _INT32, False),
        ("shape", 4, _INT64, True),
    ),
    "EncodedText": (("tokens", 1, _BYTES, False),),
    "Chunk": (("encoded_text", 1, "EncodedText", False),),
    "NamedTensor": (("key", 1, _TEXT, False), ("value", 2, "Tensor", False)),
    "Datum": (("model_input", 1, "Chunk", True), ("loss_fn_inputs", 2, "NamedTensor", True)),
    "NamedNumber": (("key", 1, _TEXT, False), ("value", 2, _DOUBLE, False)),
    "ForwardBackwardRequest": (
        ("model_id", 1, _TEXT, False),
        ("seq_id", 2, _INT32, False),
        ("data", 3, "Datum", True),
        ("loss_fn", 4, _TEXT, False),
        ("loss_fn_config", 5, "NamedNumber", True),
        ("forward_only", 6, _BOOL, False),
    ),
    "BatchedTensor": (
        ("data", 1, _BYTES, False),
        ("offsets", 2, _BYTES, False),
        ("dtype", 3, _INT32, False),
    ),
    "NamedBatch": (("key", 1, _TEXT, False), ("value", 2, "BatchedTensor", False)),
    "ArrayRecord": (
        ("type_tag", 1, _TEXT, False),
        ("fields", 2, "NamedBatch", True),
        ("num_datums", 3, _INT64, False),
    ),
    "ForwardBackwardOutput": (
        ("loss_fn_output_type", 1, _TEXT, False),
        ("loss_fn_outputs", 2, "ArrayRecord", True),
        ("metrics", 3, "NamedNumber", True),
    ),
    "SampledSequence": (
        ("stop_reason", 1, _INT32, False),
        ("tokens", 2, _BYTES, False),
        ("logprobs", 3, _BYTES, False),
    ),
    "SampleResponse": (
        ("sequences", 1, "SampledSequence", True),
        ("prompt_logprobs", 2, _BYTES, False),
    ),
}


@cache
def _classes() -> dict[str, Any]:
    """Create the message classes, independent of a client's in this process."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="wire.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            added = message.field.add(name=field, number=number, label=3 if repeated else 1)
            added.type = kind if isinstance(kind, int) else _MESSAGE
            if isinstance(kind, str):
                added.type_name = f".{_PACKAGE}.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptors = {name: pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in _MESSAGES}
    return {name: message_factory.GetMessageClass(kind) for name, kind in descriptors.items()}


def read_pass(content: bytes) -> Any:  # noqa: ANN401 -- a generated class
    """Parse a ``ForwardBackwardRequest``; raises DataError if invalid."""
    message = _classes()["ForwardBackwardRequest"]()
    try:
        message.ParseFromString(content)
    except Exception as error:  # protobuf's DecodeError, whose module depends on the build
        raise DataError(f"The body is not a ForwardBackwardRequest: {error}.") from error
    return message


def as_json(message: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return a ``ForwardBackwardRequest`` as in the JSON form of the wire."""
    data = [
        {
            "model_input": {"chunks": [{"tokens": _tokens_of(datum)}]},
            "loss_fn_inputs": {
                named.key: {"data": _numbers_of(named)} for named in datum.loss_fn_inputs
            },
        }
        for datum in message.data
    ]
    config = {named.key: named.value for named in message.loss_fn_config}
    return {
        "model_id": message.model_id,
        "seq_id": message.seq_id,
        "forward_only": message.forward_only,
        "forward_backward_input": {
            "data": data,
            "loss_fn": message.loss_fn,
            "loss_fn_config": config,
        },
    }


def _tokens_of(datum: Any) -> list[int]:  # noqa: ANN401
    ids: list[int] = []
    for chunk in datum.model_input:
        if not chunk.HasField("encoded_text"):
            raise DataError("model_input: got a chunk that is not encoded text.")
        ids += np.frombuffer(chunk.encoded_text.tokens, np.int32).tolist()
    return ids


def _numbers_of(named: Any) -> list[float]:  # noqa: ANN401
    tensor = named.value
    if tensor.sparse_csr or len(tensor.shape) > 1 or tensor.dtype not in _NUMPY:
        raise DataError(f"{named.key}: expected a dense vector of float32 or int64.")
    values: list[float] = np.frombuffer(tensor.dense, _NUMPY[tensor.dtype]).tolist()
    return values


def write_pass(metrics: dict[str, float], log_probs: list[list[float]]) -> bytes:
    """Encode a ``ForwardBackwardOutput``."""
    record = _classes()["ArrayRecord"](type_tag="ArrayRecord", num_datums=len(log_probs))
    arrays = [np.asarray(values, np.float32) for values in log_probs]
    offsets = np.cumsum([0, *(array.nbytes for array in arrays)], dtype=np.int64)
    named = record.fields.add(key="logprobs")
    named.value.data = b"".join(array.tobytes() for array in arrays)
    named.value.offsets = offsets.tobytes()
    named.value.dtype = _FLOAT32
    message = _classes()["ForwardBackwardOutput"](loss_fn_output_type="ArrayRecord")
    message.loss_fn_outputs.append(record)
    for name, value in metrics.items():
        message.metrics.add(key=name, value=value)
    content: bytes = message.SerializeToString()
    return content


def write_samples(completions: list[Completion], prompt: list[float] | None) -> bytes:
    """Encode a ``SampleResponse``; ``prompt`` contains the prompt's log-probabilities."""
    message = _classes()["SampleResponse"]()
    for completion in completions:
        message.sequences.add(
            stop_reason=_STOP if completion.finish_reason == "stop" else _LENGTH,
            tokens=np.asarray(completion.tokens, np.int32).tobytes(),
            logprobs=np.asarray(completion.log_probs, np.float32).tobytes(),
        )
    if prompt is not None:
        message.prompt_logprobs = np.asarray(prompt, np.float32).tobytes()
    content: bytes = message.SerializeToString()
    return content
