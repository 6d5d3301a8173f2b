"""The search over a trained supernet, and the retraining of what it finds."""
