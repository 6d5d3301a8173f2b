"""Transformer search spaces with a common set of candidate layers, for translation, language models and images."""
