"""A model of a few thousand random weights with the base model's tokenizer, made in no time."""

import json
from dataclasses import replace

from ratchet.language_models.service.engine.model_folder import save_llama
from ratchet.language_models.service.engine.plain_llama import PlainLlama
from ratchet.scenarios.code_validation.tiny_model import build, pretraining, vocabulary
from ratchet.seeding import torch_generator


def write_micro_model(folder, *, scale=0.3, **figures):
    """Write a model's folder; ``figures`` replace those of its shape."""
    folder.mkdir(parents=True)
    tokenizer = vocabulary.make_tokenizer()
    vocabulary.save_tokenizer(tokenizer, folder)
    size = {"hidden_size": 16, "intermediate_size": 24, "head_dim": 4, **figures}
    shape = replace(pretraining.base_shape(tokenizer.get_vocab_size()), **size)
    end = {"eos_token_id": tokenizer.token_to_id(vocabulary.END)}
    (folder / "config.json").write_text(json.dumps(build.config_of(shape) | end))
    model = PlainLlama(shape)
    model.initialise(torch_generator(0, "micro"), scale)
    save_llama(model, folder)
    return folder
