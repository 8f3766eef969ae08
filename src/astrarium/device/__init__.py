"""One GPU, shared by jobs: iterations take turns in lanes (Salus)."""
