"""The stages of arms whose agents are networks."""
