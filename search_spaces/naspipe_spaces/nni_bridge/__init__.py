"""NNI's model spaces as search spaces; NNI is imported only when a space is made."""
