"""Jobs share one GPU on this level: their iterations take turns in lanes (Salus)."""
