"""Text tasks: translation and language models, from texts that need no download."""
