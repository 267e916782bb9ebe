"""Inference engines: the address map of their live weights, and the receivers that patch them."""
