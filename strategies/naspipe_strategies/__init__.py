"""The built-in samplers and strategies, found through entry points like all plug-ins."""
