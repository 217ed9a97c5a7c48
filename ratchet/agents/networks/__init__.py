"""Building blocks of agents: layers, common heads, and what normalises their input."""
