"""The stand-in's adapters."""
