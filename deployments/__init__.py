"""Deployments, schedules, and the local stack of servers."""
