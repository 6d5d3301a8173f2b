"""The built-in search spaces; found through entry points, as anyone's are."""
