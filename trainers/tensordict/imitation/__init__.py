"""Agents that learn from what others do, before they are trained."""
