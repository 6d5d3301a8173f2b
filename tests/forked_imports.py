"""What the process that forks imports before its first fork; it uses few of these names itself."""

import pytest  # noqa: F401  # Plug-ins of tests import it.
import torch._dynamo  # noqa: F401  # The first optimizer of a process imports it.

import naspipe.runs.run
import naspipe.search.workers
import naspipe.testing  # noqa: F401  # The conformance kit asks in forks.
from naspipe.runs import retrain_processes
from naspipe.training.distributed import stage

for module in (stage, retrain_processes):
    # It ends a process whose parent is not the launcher. That of a fork is the process that forks.
    module.end_with = lambda launcher: None
