"""Runs: a folder and its phases."""
