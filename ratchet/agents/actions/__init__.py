"""What agents may do: distributions over it, and how it is packed into tensors."""
