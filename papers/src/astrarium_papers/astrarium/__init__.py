"""Our own policy, `astrarium`: no paper printed its numbers, so the claims are what it was built to reach."""
