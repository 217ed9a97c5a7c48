"""Status of a sweep: its members, their scores so far, and parameter importance."""
