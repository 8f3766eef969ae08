"""How people talk to a live cluster: over a socket in its state folder, or a network."""
