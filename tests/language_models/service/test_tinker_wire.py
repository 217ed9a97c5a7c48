"""Recorded requests of the ``tinker`` client 0.38, replayed without it, and the response bytes."""

from __future__ import annotations

import json
import struct
import urllib.error
import urllib.request

import pytest
from micro_model import write_micro_model

from ratchet.language_models.service.engine.torch_engine import TorchEngine
from ratchet.language_models.training_service import TrainingExample, connect

MODEL = "ratchet-tiny"
SESSION = "ses-45b6123c475403d2f5cf1777"
PASS = bytes.fromhex(
    "0a247365732d3435623631323363343735343033643266356366313737373a747261696e3a3010011a88010a100a"
    "0e0a0c01000000020000000300000012300a0d7461726765745f746f6b656e73121f0a1802000000000000000300"
    "0000000000000400000000000000180222010312210a0a616476616e746167657312130a0c000000000000803f00"
    "0080bf1801220103121f0a086c6f6770726f627312130a0c0000c0c00000c0c00000c0c018012201032203707"
    "06f2a1d0a12636c69705f6c6f775f7468726573686f6c64119a9999999999e93f3a1f0a12636c69705f6c6f775f"
    "7468726573686f6c641209099a9999999999e93f"
)
"""Tokens 1, 2, 3 and targets 2, 3, 4, advantages 0, 1, -1, log-probabilities -6, PPO's loss."""


@pytest.fixture(scope="module")
def served(tmp_path_factory, running_service):
    home = tmp_path_factory.mktemp("home")
    model = write_micro_model(home / MODEL)
    with running_service(home, TorchEngine(), model=model).serving() as service:
        yield service


def _ask(served, path, body=None):
    kind = "application/x-protobuf" if isinstance(body, bytes) else "application/json"
    data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
    request = urllib.request.Request(f"{served.url}/api/v1/{path}", data)
    request.add_header("content-type", kind)
    with urllib.request.urlopen(request) as answer:
        content = answer.read()
        is_json = answer.headers["content-type"].startswith("application/json")
        return json.loads(content) if is_json else content


def _retrieve(served, future):
    request = {"request_id": future["request_id"], "allow_metadata_only": True}
    return _ask(served, "retrieve_future", request)


def test_the_bytes_of_a_step_and_of_samples(served):
    assert (
        _ask(served, "client/config", {"sdk_version": "0.38.0"})["parallel_fwdbwd_chunks"] is False
    )
    lora = {"rank": 2, "seed": 1, "train_unembed": True, "train_mlp": True, "train_attn": True}
    create = {
        "session_id": SESSION,
        "model_seq_id": 0,
        "base_model": MODEL,
        "lora_config": lora,
        "optimizer_config": {"type": "adamw"},
        "type": "create_model",
    }
    model_id = _retrieve(served, _ask(served, "create_model", create))["model_id"]
    assert model_id == f"{SESSION}:train:0"
    passed = _ask(served, "forward_backward", PASS)
    assert _ask(served, "forward_backward", PASS) == passed
    answer = _retrieve(served, passed)

    with connect(served.url, model=MODEL, lora_rank=2, seed=1) as ours:
        given = {"advantages": (0, 0, 1.0, -1.0), "log_probs": (0, -6.0, -6.0, -6.0)}
        example = TrainingExample((1, 2, 3, 4), (0, 1, 1, 1), **given)
        config = {"clip_low_threshold": 0.8}
        found = ours.forward_backward([example], loss="ppo", loss_config=config, sequence=0)
    packed = struct.pack("<3f", *found.log_probs[0][1:])
    data = b"\x0a\x0c" + packed + b"\x12\x10" + struct.pack("<2q", 0, 12) + b"\x18\x01"
    named = b"\x0a\x08logprobs\x12" + bytes([len(data)]) + data
    assert b"\x0a\x0bArrayRecord\x12" + bytes([len(named)]) + named + b"\x18\x01" in answer
    assert b"\x0a\x08loss:sum\x11" + struct.pack("<d", found.metrics["loss"]) in answer

    figures = {"learning_rate": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12}
    adam = {**figures, "weight_decay": 0.0, "grad_clip_norm": 0.0}
    step = {"model_id": model_id, "seq_id": 2, "type": "optim_step", "adam_params": adam}
    assert _retrieve(served, _ask(served, "optim_step", step))["metrics"]["grad_norm"] > 0

    save = {"model_id": model_id, "sampling_session_seq_id": 0, "kind": "snapshot", "seq_id": 3}
    saved = _retrieve(served, _ask(served, "save_weights_for_sampler", save))
    prompt = {"chunks": [{"tokens": [1, 2], "type": "encoded_text"}]}
    params = {"max_tokens": 3, "seed": 1, "temperature": 1.0, "top_k": -1, "top_p": 1.0, "stop": []}
    sample = {"num_samples": 1, "prompt": prompt, "sampling_params": params, "seq_id": 0, **saved}
    future = _ask(served, "asample", sample)
    assert len(future["sample_sequence_ids"]) == 1
    samples = _retrieve(served, future)
    assert samples[:6] == b"\x0a\x1e\x08\x01\x12\x0c"  # a sequence, ended by its length, 3 ids
    assert samples[18:20] == b"\x1a\x0c"
    assert all(0 <= token < 2**16 for token in struct.unpack("<3i", samples[6:18]))
    assert all(value < 0 for value in struct.unpack("<3f", samples[20:]))


def test_its_key_is_sent_in_a_dedicated_header(tmp_path, running_service):
    model = write_micro_model(tmp_path / MODEL)
    keyed = running_service(tmp_path / "home", TorchEngine(), model=model, api_key="tml-secret")
    with keyed.serving() as service:
        for key, status in (("tml-secret", 200), ("tml-other", 401), (None, 401)):
            headers = {} if key is None else {"X-API-Key": key}
            request = urllib.request.Request(f"{service.url}/api/v1/healthz", headers=headers)
            if status == 200:
                urllib.request.urlopen(request).close()
                continue
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request)
            assert caught.value.code == status


def test_unsupported_requests_are_refused(served):
    bad = [
        ("optim_step", {"model_id": "m", "seq_id": 1, "optimizer_params": {"type": "dimuon"}}),
        ("forward_backward", b"\xff\xff"),
        ("create_model", {"session_id": "s", "model_seq_id": 0, "base_model": "none"}),
    ]
    for path, body in bad:
        with pytest.raises(urllib.error.HTTPError) as caught:
            _ask(served, path, body)
        assert caught.value.code in (400, 404)
    lost = {"request_id": "samples|ses:sample:0:ratchet-tiny|5"}
    with pytest.raises(urllib.error.HTTPError) as caught:
        _ask(served, "retrieve_future", lost)
    assert caught.value.code == 410
