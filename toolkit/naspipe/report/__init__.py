"""What a person looks at: the report and its figures."""
