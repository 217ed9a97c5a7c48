"""Comparing runs: groups, aggregates, intervals, pages."""
