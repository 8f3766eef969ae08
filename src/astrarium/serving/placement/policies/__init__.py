"""Placement policies, one file each. A file whose name begins with an underscore holds what several share."""
