"""The built-in search spaces, found through entry points like all plug-ins."""
