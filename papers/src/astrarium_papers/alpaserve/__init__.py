"""AlpaServe (Li et al., OSDI 2023): statistical multiplexing with model parallelism."""
