"""The stages of arms whose agents are chat models: one task each, as they take time and money."""
