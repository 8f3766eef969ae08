"""What people see of a live cluster: events, history, forecasts, hooks, metrics."""
