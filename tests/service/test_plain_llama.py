"""The small Llama and its tokenizer, against transformers on the same folder."""

import json

import pytest
import torch
from micro_model import trainable_model, write_micro_model

from ratchet.errors import DataError
from ratchet.language_models.local.loading import load_frozen_model
from ratchet.language_models.local.tokenizer import ChatTokenizer
from ratchet.language_models.types import ChatMessage
from ratchet.models.folders import read_json
from ratchet.models.llama_shape import LlamaShape
from ratchet.scenarios.code_validation.tiny_model import vocabulary

CHAT = (
    ChatMessage("system", "Verifier.\n\nWrite, and é ≠ 😀."),
    ChatMessage("user", "add + same 4 5 differ", "Expert"),
    ChatMessage("assistant", "Decision: reject"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "figures",
    [{}, {"num_key_value_heads": 2}, {"tie_word_embeddings": False}, {"rope_theta": 500.0}],
)
def test_logits_equal_those_of_transformers(tmp_path, figures):
    from transformers import AutoModelForCausalLM

    folder = write_micro_model(tmp_path / "m", **figures)
    ids = torch.randint(300, (3, 40), generator=torch.Generator().manual_seed(0))
    theirs = AutoModelForCausalLM.from_pretrained(folder).double()(ids).logits
    llama = load_frozen_model(folder).llama
    # transformers rotates and normalises in float32 for any type of weights
    torch.testing.assert_close(llama.logits(llama(ids)), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_saved_models_load_in_transformers_with_nothing_missing(tmp_path):
    from transformers import AutoModelForCausalLM

    folder = write_micro_model(tmp_path / "m")
    _, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    trainable_model(folder).save(tmp_path / "again")
    first, second = ((f / "model.safetensors").read_bytes() for f in (folder, tmp_path / "again"))
    assert first == second


@pytest.mark.slow
def test_chats_are_tokenized_as_by_transformers(tmp_path):
    from transformers import AutoTokenizer

    folder = write_micro_model(tmp_path / "m")
    theirs = AutoTokenizer.from_pretrained(folder)
    chat = [message.to_dict() for message in CHAT]
    expected = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert ChatTokenizer(folder).prompt_ids(CHAT) == expected


def test_every_text_survives_the_tokenizer():
    tokenizer = vocabulary.make_tokenizer()
    for text in (
        "Decision: accept",
        "é ≠ 😀\t\r\n  x",
        "    x = x + 10\n    return x",
        " 4 44 add",
    ):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_words_of_the_game_are_one_token_each():
    tokenizer = vocabulary.make_tokenizer()
    assert len(tokenizer.encode("Decision: accept").ids) == 2
    assert len(tokenizer.encode("\nmultiply by * same 4 5 differ").ids) == 6


def test_incremental_decoding_equals_a_full_forward_pass(tmp_path):
    llama = load_frozen_model(write_micro_model(tmp_path / "m")).llama
    ids = torch.randint(300, (2, 50), generator=torch.Generator().manual_seed(1))
    logits, cache = llama.start(ids[:, :9], torch.ones(2, 9, dtype=torch.bool))
    whole = llama.logits(llama(ids))
    for place in range(9, 50):
        torch.testing.assert_close(logits, whole[:, place - 1])
        logits = llama.step(ids[:, place], cache)


def test_unknown_kinds_of_models_are_left_to_transformers(tmp_path):
    config = read_json(write_micro_model(tmp_path / "m") / "config.json")
    assert LlamaShape.of(config) is not None
    for change in (
        {"model_type": "qwen2"},
        {"attention_bias": True},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}},
    ):
        assert LlamaShape.of(config | change) is None


def test_weights_that_do_not_match_the_configuration_are_refused(tmp_path):
    folder = write_micro_model(tmp_path / "m")
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"hidden_size": 16', '"hidden_size": 20'))
    with pytest.raises(DataError, match="belong together"):
        load_frozen_model(folder)


def test_a_folder_without_tokenizer_is_refused(tmp_path):
    folder = write_micro_model(tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(DataError, match="has no"):
        ChatTokenizer(folder)


def test_a_model_without_a_template_gets_a_plain_one_with_end_tokens(tmp_path):
    folder = write_micro_model(tmp_path / "m")
    own = ChatTokenizer(folder)
    (folder / "chat_template.jinja").unlink()
    tokenizer = ChatTokenizer(folder)
    assert tokenizer.render(CHAT[1:], answer=True) == (
        "user (Expert):\nadd + same 4 5 differ<|end|>\n"
        "assistant:\nDecision: reject<|end|>\n"
        "assistant:\n"
    )
    assert tokenizer.encode("<|end|>") == list(own.end_ids)
    assert own.render(CHAT[2:], answer=False) == "<|assistant|>Decision: reject<|end|>"


def test_the_plain_template_uses_the_configurations_end_token(tmp_path):
    folder = write_micro_model(tmp_path / "m")
    (folder / "chat_template.jinja").unlink()
    names = read_json(folder / "tokenizer_config.json")
    del names["eos_token"]
    text = json.dumps({**names, "bos_token": {"content": "<|pad|>"}})
    (folder / "tokenizer_config.json").write_text(text)
    rendered = ChatTokenizer(folder).render(CHAT[2:], answer=False)
    assert rendered == "<|pad|>assistant:\nDecision: reject<|end|>\n"
