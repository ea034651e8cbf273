"""Products, and the loops and rings around them."""
