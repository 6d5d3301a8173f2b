"""The schedule as data: actions and the planner; imports no torch."""

from naspipe.pipeline.action import Action as Action
from naspipe.pipeline.action import Kind as Kind
