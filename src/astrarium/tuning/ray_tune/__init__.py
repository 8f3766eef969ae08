"""Ray Tune meets our searches here: its searchers, trainables, spaces and resource allocation."""
