"""Native twins of policies: the same decisions, batch by batch, several times sooner."""
