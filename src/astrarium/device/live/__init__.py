"""Jobs share a real GPU: threads of one process take turns in lanes, whatever lanes are made of."""
