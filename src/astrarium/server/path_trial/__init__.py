"""A path trial measures what calls of a model take of a server's path: clients, and a server for them."""
