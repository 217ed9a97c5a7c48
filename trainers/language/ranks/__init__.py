"""A model that several processes train together: ``language.train_service.world_size``.

The run's own process prepares batches and plays; it never takes a step. ``group`` is its side,
``process`` is what runs in each of the others, the ranks.
"""
