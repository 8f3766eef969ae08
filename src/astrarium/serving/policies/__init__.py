"""One file for each policy; files that start with an underscore hold what several share."""
