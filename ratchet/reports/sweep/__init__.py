"""A sweep as it stands: its members, what they came to so far, and which parameters matter."""
