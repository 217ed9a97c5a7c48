"""Small programming problems with true solutions and tests, by level of difficulty."""
