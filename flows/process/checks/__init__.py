"""What ``ratchet doctor`` looks at: small functions, each of one fault or a few of a kind."""
