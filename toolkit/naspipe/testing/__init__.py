"""The conformance kit: checks that authors run on their plug-ins.

``check_plugin`` and ``naspipe plugins check`` run the checks anywhere. The classes ``...Cases`` turn them into pytest
tests; only these classes need pytest. Each name below is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from naspipe.testing.check import Check as Check
    from naspipe.testing.check import ConformanceError as ConformanceError
    from naspipe.testing.check import Result as Result
    from naspipe.testing.kit import check_plugin as check_plugin
    from naspipe.testing.kit import checks_of as checks_of
    from naspipe.testing.noise import Noise as Noise
    from naspipe.testing.pytest_cases import ExecutorCases as ExecutorCases
    from naspipe.testing.pytest_cases import ObjectiveCases as ObjectiveCases
    from naspipe.testing.pytest_cases import SamplerCases as SamplerCases
    from naspipe.testing.pytest_cases import SearchSpaceCases as SearchSpaceCases
    from naspipe.testing.pytest_cases import StrategyCases as StrategyCases
    from naspipe.testing.pytest_cases import TaskCases as TaskCases
    from naspipe.testing.subject import Subject as Subject

_HOMES = {
    "Check": "check",
    "ConformanceError": "check",
    "ExecutorCases": "pytest_cases",
    "Noise": "noise",
    "Result": "check",
    "ObjectiveCases": "pytest_cases",
    "SamplerCases": "pytest_cases",
    "SearchSpaceCases": "pytest_cases",
    "StrategyCases": "pytest_cases",
    "Subject": "subject",
    "TaskCases": "pytest_cases",
    "check_plugin": "kit",
    "checks_of": "kit",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'naspipe.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"naspipe.testing.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
