"""Search algorithms ask for groups of trials; each has a file."""
