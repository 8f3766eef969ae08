"""Where jobs of a live cluster run: on this machine, other hosts, Ray, or under a scheduler of the site."""
