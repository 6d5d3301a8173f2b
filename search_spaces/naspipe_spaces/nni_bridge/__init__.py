"""NNI's model spaces as search spaces; NNI itself is imported only when one is built."""
