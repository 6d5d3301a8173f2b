"""The search over a trained supernet: strategies, objectives, constraints, evaluation and trials."""
