"""Executors: policies over integers; imports no torch."""

from naspipe.pipeline.executor import Executor as Executor
from naspipe.pipeline.executor import PipelineShape as PipelineShape
from naspipe.pipeline.executor import StageView as StageView
