"""What runs inside the sandboxed subprocess. Standard library only, and none of our own process."""
