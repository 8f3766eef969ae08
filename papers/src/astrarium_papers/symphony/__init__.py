"""Chen et al., "Symphony: Optimized DNN Model Serving using Deferred Batch Scheduling"."""
