"""Executors: policies over integers; imports no torch."""

from naspipe.executors.executor import Executor as Executor
