"""A run's folder, read: where its files lie, and what they hold."""
