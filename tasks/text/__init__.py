"""The stages of arms whose agents are chat models: minutes and money each, so one task each."""
