"""Inference engines: address maps of their live weights, and receivers that patch them."""
