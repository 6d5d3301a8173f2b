"""What is tried before a run starts: task, space, options and layout."""
