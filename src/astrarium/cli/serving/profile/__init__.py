"""astrarium profile: of which model, how it is measured, and where the profile goes."""
