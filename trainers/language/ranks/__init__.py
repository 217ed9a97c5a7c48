"""Training of one model in several processes: ``language.train_service.world_size``.

The run's main process prepares batches; it takes no steps. ``group`` runs in the main process,
``process`` and ``sampling`` in each of the others, the ranks.
"""
