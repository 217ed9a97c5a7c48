"""Programs that nobody has read, run where they can do no harm; for every scenario."""
