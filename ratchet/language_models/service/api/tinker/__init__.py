"""The wire of the public ``tinker`` client, spoken by the service."""
