"""What bytes are: weights, archives, and what hides in them."""
