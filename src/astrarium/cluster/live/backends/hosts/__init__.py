"""Jobs run on machines whose agents connect to the arbiter, and which share no folder with it."""
