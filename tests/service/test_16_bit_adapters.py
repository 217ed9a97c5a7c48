"""Adapters to 16-bit models: served and trained further without rounding them away."""

from __future__ import annotations

import gc
import json
import shutil

import pytest
import torch
from micro_model import write_micro_model
from safetensors.torch import load_file, save_file

from ratchet.language_models.engines.in_process import InProcessEngine
from ratchet.language_models.engines.rollouts import SampleRequest
from ratchet.language_models.local import loading, network
from ratchet.language_models.local.adapters import AdapterBase, peft_config
from ratchet.language_models.local.loading import load_frozen_model
from ratchet.language_models.local.model_files import ModelFiles
from ratchet.language_models.local.network import read_network, save_merged, with_adapters
from ratchet.models.llama_shape import plain_shape
from ratchet.models.lora import Lora
from ratchet.service.training import trained_model
from ratchet.service.training.trained_model import TrainedModel

pytestmark = pytest.mark.slow
pytest.importorskip("peft")

LORA = Lora(rank=2, dropout=0.5)
IDS = torch.randint(5, 200, (4, 24), generator=torch.Generator().manual_seed(0))


def log_probs(model):
    chosen = torch.ones_like(IDS)
    chosen[:, 0] = 0
    return model.score(IDS, torch.ones_like(IDS), chosen).log_probs.double()


def gain(model, base):
    """Return by how much the texts are more likely than by the base, on average."""
    with torch.no_grad():
        return float((log_probs(model) - log_probs(base)).mean())


@pytest.fixture(autouse=True)
def _transformers(monkeypatch):
    for module in (loading, trained_model):
        monkeypatch.setattr(module, "plain_shape", lambda _: None)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Write a model with bfloat16 weights."""
    folder = tmp_path_factory.mktemp("base") / "m"
    write_micro_model(folder, hidden_size=64, intermediate_size=128, head_dim=16, scale=0.15)
    weights = {name: tensor.bfloat16() for name, tensor in load_file(weights_of(folder)).items()}
    save_file(weights, weights_of(folder), metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"dtype": "bfloat16"}))
    return folder


def weights_of(folder):
    return folder / "model.safetensors"


def trainable(base, adapters=(), lora=LORA, *, saves_memory=False):
    values = {"shares_prompts": False, "saves_memory": saves_memory}
    return TrainedModel("m", base, adapters, lora, 0, **values)


@pytest.fixture
def chain(base, tmp_path):
    """Train an adapter, and another on top of it, by a few small steps in float32."""
    folders = []
    for name in ("first", "second"):
        trained = trainable(base, folders)
        adam = torch.optim.Adam(trained.parameters(), lr=5e-5)
        for _ in range(20):
            adam.zero_grad()
            (-log_probs(trained.model).mean()).backward()
            adam.step()
        trained.save(tmp_path / name)
        folders.append(tmp_path / name)
    return folders


@pytest.mark.parametrize("kind", ["large", "small", "plain"])
def test_small_changes_of_16_bit_models_are_served(base, chain, monkeypatch, kind):
    if kind == "large":
        monkeypatch.setattr(loading, "LARGEST_PLAIN_MODEL", 0)
        # the type of shared weights is changed below
        monkeypatch.setattr(
            network, "read_shared_network", lambda folder, **_: read_network(folder, "auto")
        )
    if kind == "plain":
        monkeypatch.setattr(loading, "plain_shape", plain_shape)
    before = load_frozen_model(base)
    assert before.dtype == (torch.bfloat16 if kind == "large" else torch.float64)
    float32 = trainable(base, lora=Lora()).model
    for adapters in (chain[:1], chain):
        expected = gain(trainable(base, adapters, lora=Lora()).model, float32)
        served = load_frozen_model(base, adapters)
        assert not any(weight.requires_grad for weight in served.all_parameters())
        if kind == "large":  # compute without rounding activations
            before._network.double()
            served._network.double()
        assert gain(served, before) == pytest.approx(expected, rel=1e-4)


def test_models_of_one_base_share_its_weights(base, chain, monkeypatch):
    monkeypatch.setattr(loading, "LARGEST_PLAIN_MODEL", 0)

    def load_all():
        return [load_frozen_model(base, adapters) for adapters in ((), chain[:1], chain)]

    with monkeypatch.context() as patched:
        patched.setattr(
            network, "read_shared_network", lambda folder, **_: read_network(folder, "auto")
        )
        expected = [log_probs(model) for model in load_all()]
    models = load_all()
    whole = {id(weight) for weight in models[0].all_parameters()}
    for model, scores in zip(models, expected, strict=True):
        assert torch.equal(log_probs(model), scores)
        assert whole <= {id(weight) for weight in model.all_parameters()}
    assert len(network._SHARED) == 1
    del models[:2], model
    gc.collect()
    assert torch.equal(log_probs(models[0]), expected[2])
    models.clear()
    gc.collect()
    assert not network._SHARED, "the last model frees them"


def test_changed_weights_are_not_shared(base, tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "LARGEST_PLAIN_MODEL", 0)
    folder = shutil.copytree(base, tmp_path / "m")
    first = load_frozen_model(folder)
    weights = {name: tensor + 1 for name, tensor in load_file(weights_of(folder)).items()}
    save_file(weights, weights_of(folder), metadata={"format": "pt"})
    assert not torch.equal(log_probs(load_frozen_model(folder)), log_probs(first))


def test_a_new_adapter_is_trained_on_what_is_served(base, chain, monkeypatch):
    from ratchet.language_models.local.hugging_face import HuggingFaceLanguageModel

    monkeypatch.setattr(loading, "LARGEST_PLAIN_MODEL", 0)
    served = load_frozen_model(base, chain)
    model = HuggingFaceLanguageModel.with_new_adapter(
        ModelFiles(base),
        with_adapters(read_network(base, "auto"), chain),
        torch.device("cpu"),
        Lora(rank=3, dropout=0.5),
        AdapterBase("second", str(chain[1]), ""),
        seed=0,
    )
    assert torch.equal(log_probs(model), log_probs(served))
    weights = model.state_dict()
    assert len(weights) == len(model.parameters()) > 0
    assert {min(tensor.shape) for tensor in weights.values()} == {3}
    model.set_dropout(is_on=True)
    assert torch.equal(log_probs(model), log_probs(served)), "only the new adapter has dropout"
    log_probs(model).mean().backward()
    assert any(bool(weight.grad.any()) for weight in model.parameters())


def test_jobs_on_a_cpu_merge_in_float32(base, chain):
    jobs, sessions = (trainable(base, chain, saves_memory=saves).model for saves in (True, False))
    assert torch.equal(log_probs(jobs), log_probs(sessions))


def test_models_with_adapters_next_to_their_weights_generate_in_slots(base, chain, monkeypatch):
    model = load_frozen_model(base, chain)
    engine = InProcessEngine(model, end_ids=())
    asked = [SampleRequest(tuple(row), 20, seed=5) for row in IDS.tolist()]
    growing = engine.generate(asked)
    monkeypatch.setattr(model, "uses_slots", True)
    assert [each.tokens for each in engine.generate(asked)] == [each.tokens for each in growing]
    assert model._slots is not None


@pytest.mark.parametrize("is_plain", [False, True])
def test_complete_models_are_rounded_once(base, chain, tmp_path, monkeypatch, is_plain):
    if not is_plain:
        monkeypatch.setattr(network, "plain_shape", lambda _: None)
    save_merged(base, chain, tmp_path / "merged")
    merged = with_adapters(read_network(base, "float32"), chain).state_dict()
    written = load_file(weights_of(tmp_path / "merged"))
    assert written.keys() == load_file(weights_of(base)).keys()
    for name, tensor in written.items():
        assert torch.equal(tensor, merged[name].bfloat16())


@pytest.fixture
def experts(tmp_path):
    """Write a mixture of experts, with router biases in float32, and an adapter to it."""
    from peft import get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}
    routing = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    config = AutoConfig.for_model(
        "glm4_moe",
        vocab_size=64,
        pad_token_id=0,
        n_group=1,
        topk_group=1,
        **size,
        **heads,
        **routing,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.model.layers[1].mlp.gate.e_score_correction_bias = torch.tensor([1.2345678, 2, 3, 4])
    model.save_pretrained(tmp_path / "experts")
    adapted = get_peft_model(model, peft_config(Lora(rank=2)))
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            weight.data.fill_(0.5)
    adapted.save_pretrained(tmp_path / "adapter")
    return tmp_path / "experts", tmp_path / "adapter"


def test_adapters_to_experts_are_merged(experts):
    folder, adapter = experts
    served = with_adapters(read_network(folder, "auto"), [adapter])
    assert not any("lora" in name for name, _ in served.named_parameters())
    before = dict(read_network(folder, "auto").named_parameters())
    changed = {n for n, weight in served.named_parameters() if not torch.equal(weight, before[n])}
    assert any(".experts." in name for name in changed)


def test_exports_keep_the_type_of_each_weight(experts, monkeypatch):
    monkeypatch.setattr(network, "copy_configuration", lambda *_: None)
    folder, adapter = experts
    save_merged(folder, [adapter], folder / "merged")
    before, after = (load_file(weights_of(each)) for each in (folder, folder / "merged"))
    assert {n: t.dtype for n, t in before.items()} == {n: t.dtype for n, t in after.items()}
    (bias,) = (n for n, t in before.items() if t.dtype == torch.float32)
    assert torch.equal(before[bias], after[bias])


def test_jobs_that_train_all_weights_keep_the_type_of_each(base, experts, monkeypatch, tmp_path):
    monkeypatch.setattr(trained_model, "ModelFiles", lambda _: ModelFiles(base))
    folder, _ = experts
    trainable(folder, lora=Lora()).save(tmp_path / "trained")
    before, after = (load_file(weights_of(each)) for each in (folder, tmp_path / "trained"))
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert {t.dtype for t in after.values()} == {torch.bfloat16, torch.float32}
