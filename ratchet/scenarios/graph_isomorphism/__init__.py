"""Graph isomorphism: whether two graphs are the same up to relabelling."""
