"""Games played in text by chat models: episodes, what agents see, prompts and replies.

Names are imported on first use; inside Ratchet the concrete modules are imported.
"""
