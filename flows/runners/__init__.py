"""Where work runs that needs nothing of other work: processes, clusters, work pools."""
