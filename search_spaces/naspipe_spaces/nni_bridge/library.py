"""NNI, imported on first use; the state that its import changes is restored."""

from __future__ import annotations

import importlib
import logging
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

from naspipe.errors import PluginError


def load_nni() -> SimpleNamespace:
    """Import the modules of NNI 3.0 that the bridge needs.

    Returns:
        The modules ``nn`` (``nni.nas.nn.pytorch``), ``cell``, ``mutable``, ``operation`` (of the superkernels) and
        ``strategy``.

    Raises:
        PluginError: NNI is missing, or cannot be imported.
    """
    python_state = random.getstate()
    try:
        with warnings.catch_warnings():
            # NNI 3.0 wraps every class of torch.nn; in torch 2.13 two of them are not modules (November 2026).
            warnings.filterwarnings("ignore", ".*is found to be not a nn.Module", RuntimeWarning)
            return SimpleNamespace(
                nn=importlib.import_module("nni.nas.nn.pytorch"),
                cell=importlib.import_module("nni.nas.nn.pytorch.cell"),
                mutable=importlib.import_module("nni.mutable"),
                operation=importlib.import_module("nni.nas.oneshot.pytorch.supermodule.operation"),
                strategy=importlib.import_module("nni.nas.strategy"),
            )
    except ImportError as error:
        raise PluginError(
            f"space 'nni' needs NNI 3.0 and PyTorch Lightning, but they cannot be imported: "
            f"{type(error).__name__}: {error}. Install them: pip install 'naspipe[nni]'"
        ) from error
    finally:
        # Its imports draw from Python's global generator.
        random.setstate(python_state)


@contextmanager
def quiet() -> Iterator[None]:
    """Silence NNI's log, and its warnings about arguments that it collected itself."""
    logger = logging.getLogger("nni")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # NNI 3.0 passes the arguments of its mixed operations as one mapping (November 2026).
            warnings.filterwarnings("ignore", "Found positional arguments", UserWarning)
            yield
    finally:
        logger.setLevel(level)
