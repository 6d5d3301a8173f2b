"""Training in several processes: how they are started, connected and ended."""
