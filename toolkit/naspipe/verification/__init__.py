"""Trainings compared: under other executors and layouts, resumed, and measured."""
