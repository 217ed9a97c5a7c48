"""Small language models and their training steps, used by trainers and the model service alike.

A Llama in plain torch, low-rank changes (LoRA), optimizers, supervised batches. Knows no service.
"""
