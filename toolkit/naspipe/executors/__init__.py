"""Executors: policies over integers; imports no torch."""

from naspipe.executors.executor import Executor as Executor
from naspipe.executors.executor import PipelineShape as PipelineShape
from naspipe.executors.executor import StageView as StageView
