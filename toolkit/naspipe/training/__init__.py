"""Supernet training in torch: the loop, stages, layers and what keeps them bitwise."""
