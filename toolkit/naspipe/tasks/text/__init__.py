"""Text tasks: translation and language models, from texts that a machine already has."""
