"""The workers: started, given models, restarted, and kept apart where a model breaks them."""
