"""What the process that forks imports before its first fork."""

import pytest  # noqa: F401
import torch._dynamo  # noqa: F401  # The first optimizer of a process imports it.

import naspipe.runs.run
import naspipe.search.workers
import naspipe.testing  # noqa: F401
from naspipe.training.distributed import stage

# It ends a process whose parent is not the launcher. That of a fork is the process that forks.
stage.end_with = lambda launcher: None
