"""Comparisons of trainings: under other executors and layouts, resumed, and measured."""
