"""The binary erasure channel: the smallest prover-verifier game with a known answer."""
