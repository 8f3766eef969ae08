"""Search algorithms, cut into groups of trials, one file each."""
