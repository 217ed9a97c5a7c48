"""Requests by path."""
