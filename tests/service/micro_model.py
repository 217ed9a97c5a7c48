"""A model of a few thousand random weights with the base model's tokenizer, and adapters to it."""

import json
from dataclasses import replace

import torch
from safetensors.torch import load_file, save_file

from ratchet.language_models.local.loading import PlainLanguageModel
from ratchet.models.llama import PlainLlama
from ratchet.models.llama_shape import plain_shape
from ratchet.scenarios.code_validation.tiny_model import pretraining, vocabulary
from ratchet.seeding import torch_generator

RANK, ALPHA = 2, 6


def write_micro_model(folder, *, scale=0.3, **figures):
    """Write a model's folder; ``figures`` override those of its shape."""
    folder.mkdir(parents=True)
    tokenizer = vocabulary.make_tokenizer()
    vocabulary.save_tokenizer(tokenizer, folder)
    size = {"hidden_size": 16, "intermediate_size": 24, "head_dim": 4, **figures}
    shape = replace(pretraining.base_shape(tokenizer.get_vocab_size()), **size)
    end = {"eos_token_id": tokenizer.token_to_id(vocabulary.END)}
    (folder / "config.json").write_text(json.dumps(shape.as_config() | end))
    model = PlainLlama(shape)
    model.initialise(torch_generator(0, "micro"), scale)
    model.save(folder)
    return folder


def trainable_model(folder, adapters=()):
    """Return a small Llama as a job trains it."""
    device = torch.device("cpu")
    return PlainLanguageModel.read(
        folder, plain_shape(folder), device, adapters, shares_prompts=False
    )


def write_adapter(folder, base, name, *, seed=0, **config):
    """Write an adapter to all projections of a model of any base, in PEFT's layout."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for weight, tensor in load_file(base / "model.safetensors").items():
        if "_proj." in weight:
            layer = f"base_model.model.{weight.removesuffix('.weight')}"
            for part, shape in (("A", (RANK, tensor.shape[1])), ("B", (tensor.shape[0], RANK))):
                values = torch.randn(shape, generator=generator) * 0.3
                tensors[f"{layer}.lora_{part}.weight"] = values
    save_file(tensors, folder / "adapter_model.safetensors")
    values = {"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, **config}
    (folder / "adapter_config.json").write_text(json.dumps(values))
    return tensors
