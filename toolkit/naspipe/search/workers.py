"""Workers: processes that evaluate subnets, and are restarted when they die."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import nn

from naspipe.config.resolve import TASK, construct, resolve
from naspipe.config.schema import RunConfig
from naspipe.config.source import Source
from naspipe.errors import InputError, SearchError
from naspipe.processes import interrupts_kept_here
from naspipe.search.evaluation import ModuleEvaluator
from naspipe.search.loop import reason_of
from naspipe.supernet.determinism import deterministic
from naspipe.tasks.loading import load_splits

MAX_DEATHS = 2
"""Number of workers that die during the evaluation of one subnet before it counts as failed."""

STOP_SECONDS = 5
"""Time for a worker to end after the last evaluation; then it is killed."""

Result = dict[str, object] | Exception


class WorkerPool:
    """Evaluates modules in worker processes; their number changes no result.

    A worker has the task's data and one subnet at a time, but not the supernet. On CUDA, the workers are distributed
    over the GPUs.
    """

    def __init__(self, config: RunConfig, count: int) -> None:
        """Prepare; no process is started yet.

        Args:
            config: The run's configuration.
            count: Number of processes.
        """
        self._config = config
        self._workers = [_Worker(config, number) for number in range(count)]

    def evaluate(self, extracts: Sequence[Callable[[], nn.Module]]) -> Iterator[tuple[int, Result]]:
        """Yield index and metrics of each module, or the error, in the order in which evaluations end.

        Args:
            extracts: For each module a function that makes it; called when a worker is free.

        Raises:
            SearchError: A worker cannot start.
            InputError: A module cannot be sent to another process.
        """
        waiting = deque((place, 0) for place in range(len(extracts)))
        busy: dict[Connection, tuple[_Worker, int, int]] = {}
        # All start now, so that they load their data at the same time.
        for worker in self._workers[: len(extracts)]:
            worker.start()
        while waiting or busy:
            for worker in self._workers:
                if waiting and worker.connection not in busy:
                    place, deaths = waiting.popleft()
                    worker.send(_pack(extracts[place]()))
                    busy[worker.open()] = (worker, place, deaths)
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                worker, place, deaths = busy.pop(ready)
                try:
                    yield place, worker.receive()
                except _WorkerDiedError as error:
                    deaths += 1
                    if deaths < MAX_DEATHS:
                        waiting.appendleft((place, deaths))
                    else:
                        yield place, ValueError(f"the process that evaluated it died {deaths} times, at last {error}")

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.hang_up()
        for worker in self._workers:
            worker.end()

    def kill(self) -> None:
        """Kill all processes."""
        for worker in self._workers:
            worker.kill()


class _WorkerDiedError(Exception):
    """A worker's process ended before its result; the message says how."""


class _Worker:
    """One worker process and the connection to it; it is started when it is first needed, and again after it died."""

    def __init__(self, config: RunConfig, number: int) -> None:
        self._config = config
        self._number = number
        self._process: Any = None
        self.connection: Connection | None = None

    def open(self) -> Connection:
        """Return the connection to the running process."""
        assert self.connection is not None
        return self.connection

    def start(self) -> None:
        """Start a process if none is running."""
        if self._process is not None and not self._process.is_alive():
            self.kill()
        if self._process is None:
            self._start()

    def send(self, subnet: bytes) -> None:
        """Send a subnet to the process."""
        self.start()
        # If the process has just died, receive() raises the error.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.open().send_bytes(subnet)

    def receive(self) -> Result:
        """Return the result of the subnet that was sent last.

        Raises:
            _WorkerDiedError: The process has died.
            SearchError: The process could not start.
        """
        try:
            kind, content = pickle.loads(self.open().recv_bytes())
        except (EOFError, ConnectionResetError):
            raise _WorkerDiedError(self._how_it_ended()) from None
        if kind == "unable":
            self.kill()
            raise SearchError(f"a worker of the search cannot start: {content}")
        result: Result = content if kind == "metrics" else ValueError(content)
        return result

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(
            target=serve,
            args=(there, self._config.model_dump(mode="json"), self._number),
            name=f"naspipe worker {self._number}",
        )
        with interrupts_kept_here():
            process.start()
        # The other end must be open in the worker only, so that its death closes the connection.
        there.close()
        self._process, self.connection = process, here

    def _how_it_ended(self) -> str:
        self._process.join()
        code = self._process.exitcode
        self.kill()
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"

    def hang_up(self) -> None:
        """Close the connection; the process then ends after its current evaluation."""
        if self.connection is not None:
            self.connection.close()

    def end(self) -> None:
        """Wait for the end of the process, and kill it if it takes too long."""
        if self._process is not None:
            self._process.join(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Kill the process, if it is running."""
        self.hang_up()
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = self.connection = None


def _pack(module: nn.Module) -> bytes:
    try:
        return pickle.dumps(module.cpu())
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"with search.workers above 1 subnets must be pickled for other processes, but one cannot be: {error}. "
            "Define its classes and functions at the top of a file, or set search.workers to 1."
        ) from error


def serve(connection: Connection, config: dict[str, Any], number: int) -> None:
    """Evaluate subnets until the connection is closed; the main function of a worker.

    Args:
        connection: The connection to the process of the search.
        config: The run's configuration as JSON.
        number: Index of the worker, which selects its GPU.
    """

    def answer(kind: str, content: object) -> None:
        connection.send_bytes(pickle.dumps((kind, content)))

    try:
        resolved = resolve(Source(data=config))
        training = resolved.training
        with deterministic(training.threads, training.device):
            if training.device == "cuda":
                torch.cuda.set_device(number % torch.cuda.device_count())
            try:
                task = construct(TASK.registry, resolved.task.name, resolved.task.parameters)
                evaluator = ModuleEvaluator(task, load_splits(task, resolved.seed), resolved)
            except Exception as error:
                connection.recv_bytes()
                answer("unable", reason_of(error))
                return
            while True:
                module = pickle.loads(connection.recv_bytes())
                try:
                    metrics = evaluator.evaluate(module.to(training.device))
                except Exception as error:
                    answer("failed", reason_of(error))
                else:
                    answer("metrics", metrics)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # The process of the search has ended, or has closed the connection.
