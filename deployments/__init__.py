"""When and where flows run: deployments, schedules, and the local stack of servers."""
