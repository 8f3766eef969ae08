"""What `features.py` measures: requests with a feature, the server they go to, and clients that send them."""
