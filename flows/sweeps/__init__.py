"""Experiments over a grid: which members there are, and how they run side by side."""
