"""The only clocks: simulated time, recorded time, and (with live serving) the wall clock."""
