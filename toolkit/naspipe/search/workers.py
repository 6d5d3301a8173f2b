"""Workers: processes that evaluate subnets, and are replaced when they die."""

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
"""Workers that may die over one candidate before it counts as failed."""

STOP_SECONDS = 5
"""After the last evaluation a worker has this long to end before it is killed."""

Result = dict[str, object] | Exception


class WorkerPool:
    """Evaluates modules in processes of their own; no number of them changes a result.

    A worker holds the task's data and one subnet at a time, and knows nothing of the supernet. On CUDA, workers take
    the GPUs in turn.
    """

    def __init__(self, config: RunConfig, count: int) -> None:
        """Start nothing yet.

        Args:
            config: The run's configuration.
            count: Number of processes.
        """
        self._config = config
        self._workers = [_Worker(config, number) for number in range(count)]

    def evaluate(self, extracts: Sequence[Callable[[], nn.Module]]) -> Iterator[tuple[int, Result]]:
        """Yield place and metrics of each module, or why it has none, as they come.

        Args:
            extracts: Make the modules; each is called when a worker is free.

        Raises:
            SearchError: A worker cannot start.
            InputError: A module cannot be sent to another process.
        """
        waiting = deque((place, 0) for place in range(len(extracts)))
        busy: dict[Connection, tuple[_Worker, int, int]] = {}
        # All at once, before the first waits for the first subnet.
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
        """End all processes at once."""
        for worker in self._workers:
            worker.kill()


class _WorkerDiedError(Exception):
    """A worker's process ended before it gave a result; the message says how."""


class _Worker:
    """One process and the connection to it; started when it is first needed, and again after it died."""

    def __init__(self, config: RunConfig, number: int) -> None:
        self._config = config
        self._number = number
        self._process: Any = None
        self.connection: Connection | None = None

    def open(self) -> Connection:
        """Return the connection to a process that is there."""
        assert self.connection is not None
        return self.connection

    def start(self) -> None:
        """Start a process, if there is none or the last one has died idle."""
        if self._process is not None and not self._process.is_alive():
            self.kill()
        if self._process is None:
            self._start()

    def send(self, subnet: bytes) -> None:
        """Let the process evaluate a subnet."""
        self.start()
        # If it has just died, receive() says so.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.open().send_bytes(subnet)

    def receive(self) -> Result:
        """Return what came of the subnet.

        Raises:
            _WorkerDiedError: The process has died over it.
            SearchError: The process could not start.
        """
        try:
            kind, content = pickle.loads(self.open().recv_bytes())
        except (EOFError, ConnectionResetError):
            raise _WorkerDiedError(self._how_it_ended()) from None
        if kind == "unable":
            self.kill()
            raise SearchError(f"a process that evaluates cannot start: {content}")
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
        # Only the process itself may hold its end, so that its death closes the connection.
        there.close()
        self._process, self.connection = process, here

    def _how_it_ended(self) -> str:
        self._process.join()
        code = self._process.exitcode
        self.kill()
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with code {code}"

    def hang_up(self) -> None:
        """Let the process end when it has nothing to do."""
        if self.connection is not None:
            self.connection.close()

    def end(self) -> None:
        """Wait until the process has ended, and kill it if it does not."""
        if self._process is not None:
            self._process.join(STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the process, if there is one."""
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
            f"search.workers above 1 sends subnets to other processes, but this one cannot be pickled: {error}. Define "
            "its classes and functions at the top of a file, or set search.workers to 1."
        ) from error


def serve(connection: Connection, config: dict[str, Any], number: int) -> None:
    """Evaluate what comes until the other end hangs up; the main function of a worker.

    Args:
        connection: To the process that searches.
        config: The run's configuration, as its YAML holds it.
        number: The worker's place among the others.
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
        pass  # The process that searches has ended, or needs no more.
