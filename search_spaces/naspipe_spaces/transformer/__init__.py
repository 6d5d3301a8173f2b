"""Transformer search spaces over one set of candidate layers: translation, language modelling, images."""
