"""Apps run on a real cluster here: an arbiter decides, agents start processes, keepers watch them."""
