"""The base model ``ratchet-tiny``: a tokenizer and a small Llama, made here from a seed."""
