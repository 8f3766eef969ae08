"""Ray Tune's searchers, trainables, spaces and resource allocation work with our searches here."""
