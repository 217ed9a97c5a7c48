"""Tasks that a language model answers with tokens it learns from, and environments around them."""
