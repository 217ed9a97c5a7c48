"""Sessions in which a client trains a model verb by verb."""
