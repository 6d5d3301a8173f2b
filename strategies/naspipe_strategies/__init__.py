"""The built-in samplers and strategies; found through entry points, as anyone's are."""
