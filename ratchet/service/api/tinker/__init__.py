"""The wire format of the public ``tinker`` client."""
