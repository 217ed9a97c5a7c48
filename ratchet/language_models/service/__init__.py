"""The embedded model service: OpenAI's API for chat and fine-tuning, on this machine."""
