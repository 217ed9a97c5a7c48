"""Code of the sandboxed subprocess; imports only the standard library."""
