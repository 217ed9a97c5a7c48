"""Recorded requests of the ``tinker`` client 0.38, replayed without it, and the response bytes."""

from __future__ import annotations

import json
import struct
import urllib.error
import urllib.request

import pytest
from micro_model import write_micro_model

from ratchet.language_models.engines.torch_engine import TorchEngine
from ratchet.language_models.retrying import RetryPolicy
from ratchet.language_models.training_service import SampleRequest, TrainingExample, connect
from ratchet.service.api.tinker import wire

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


def _ask(served, path, body=None, accept="application/x-protobuf"):
    kind = "application/x-protobuf" if isinstance(body, bytes) else "application/json"
    data = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
    request = urllib.request.Request(f"{served.url}/api/v1/{path}", data)
    request.add_header("content-type", kind)
    request.add_header("accept", accept)
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


def _vector(*values):
    return {"data": values, "dtype": "float32"}


def test_passes_in_json_equal_those_in_protobuf(served):
    datum = {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
        "loss_fn_inputs": {
            "target_tokens": _vector(2, 3, 4),
            "advantages": _vector(0, 1, -1),
            "logprobs": _vector(-6, -6, -6),
        },
    }
    given = {"data": [datum], "loss_fn": "ppo", "loss_fn_config": {"clip_low_threshold": 0.8}}
    answers = []
    for session in ("ses-one", "ses-two"):
        create = {"session_id": session, "model_seq_id": 0, "base_model": MODEL}
        create["lora_config"] = {"rank": 2, "seed": 1}
        model_id = _ask(served, "create_model", create)["model_id"]
        if session == "ses-one":
            body = {"model_id": model_id, "seq_id": 1, "forward_backward_input": given}
        else:
            named = SESSION.encode() + b":train:0"
            model = model_id.encode()
            body = PASS.replace(bytes([len(named)]) + named, bytes([len(model)]) + model)
        future = _ask(served, "forward_backward", body)
        request = {"request_id": future["request_id"]}
        answers.append(_ask(served, "retrieve_future", request, accept="application/json"))
    assert answers[0] == answers[1]
    assert len(answers[0]["loss_fn_outputs"][0]["logprobs"]["data"]) == 3
    assert answers[0]["metrics"].keys() >= {"loss:sum", "entropy:mean"}


def test_a_model_with_an_intent_is_reopened_by_any_client(served):
    options = {"intent": "shared", "seed": 3, "lora_alpha": 8}
    create = {"base_model": MODEL, "lora_config": {"rank": 2}, "model_seq_id": 0}
    create["user_metadata"] = {"ratchet": options, "other": "ignored"}
    ids = {
        _ask(served, "create_model", {**create, "session_id": session})["model_id"]
        for session in ("ses-one", "ses-two")
    }
    with connect(
        served.url, model=MODEL, lora_rank=2, lora_alpha=8, seed=3, intent="shared"
    ) as ours:
        assert ids == {ours.session_id}
        with urllib.request.urlopen(f"{served.url}/api/v1/training_runs") as answer:
            runs = json.load(answer)["training_runs"]
        (run,) = [run for run in runs if run["training_run_id"] == ours.session_id]
        assert (run["base_model"], run["lora_rank"], run["next_seq_id"]) == (MODEL, 2, 1)


def test_results_that_take_longer_than_a_response_are_polled(served, monkeypatch):
    monkeypatch.setattr(wire, "_POLL_SECONDS", 1e-4)
    sent, real = [], wire.Wire.retrieve

    async def counted(self, request_id, **how):
        sent.append(request_id)
        return await real(self, request_id, **how)

    monkeypatch.setattr(wire.Wire, "retrieve", counted)
    policy = RetryPolicy(max_attempts=1)
    with connect(served.url, model=MODEL, policy=policy) as ours:
        for number in range(4):
            example = TrainingExample((1, 2, 3, 4) * 4, (0, 1, 1, 1) * 4)
            ours.forward([example] * 40, sequence=number)
    assert len(sent) > len(set(sent)) == 5


def test_samples_that_a_restart_lost_are_requested_again(served, monkeypatch):
    real, lost = wire.Wire._retrieve_samples, []

    async def forgetful(self, request_id, as_protobuf):
        if not lost:
            lost.append(self._samples.pop(request_id))
        return await real(self, request_id, as_protobuf)

    monkeypatch.setattr(wire.Wire, "_retrieve_samples", forgetful)
    requests = [SampleRequest((1, 2), 5, seed) for seed in range(3)]
    with connect(served.url, model=MODEL, policy=RetryPolicy(max_attempts=1)) as ours:
        current = ours.sample(requests)
        assert ours.sample(requests) == current
        saved = ours.save_weights(sequence=0, name="current")  # as samplers of a session's
        assert ours.sample(requests, model=saved) == current
    assert len(lost) == 1


def test_stored_samples_are_limited(served, monkeypatch):
    monkeypatch.setattr(wire, "_KEPT_SAMPLES", 4)
    stored, real = [], wire.Wire.sample

    def counted(self, body):
        answer = real(self, body)
        stored.append(self._num_samples())
        return answer

    monkeypatch.setattr(wire.Wire, "sample", counted)
    with connect(served.url, model=MODEL) as ours:
        for number in (3, 2, 6, 1):
            found = ours.sample([SampleRequest((1, 2), 2, seed) for seed in range(number)])
            assert len(found) == number
    assert stored[-4:] == [3, 2, 6, 1]


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
