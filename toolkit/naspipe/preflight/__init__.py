"""Checks before a run starts: task, space, options and layout."""
