"""The base model ``ratchet-tiny``: a tokenizer and a small Llama, built locally from a seed."""
