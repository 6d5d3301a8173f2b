"""Several machines: two torchrun agents on this one, as two nodes; what they compare, and what if one is lost."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import TINY, TinyTask
from torch.distributed import DistNetworkError, HashStore, Store, TCPStore

from naspipe import Run
from naspipe.errors import InputError, StoppedError, TrainingError
from naspipe.runs.resuming import reopen
from naspipe.tasks.data import Batch, Dataset, TensorDataset
from naspipe.training.context import as_config
from naspipe.training.distributed import agreement, torchrun
from naspipe.training.distributed.requirements import require_gpus

HERE = Path(__file__).parent
MARK = "NASPIPE_TEST_MACHINES"
SLOW = """
import os, time
from conftest import TinyTask

class Slow(TinyTask):
    def loss(self, outputs, targets):
        time.sleep(float(os.environ.get("PAUSE", 0)))
        return super().loss(outputs, targets)
"""

ENDS = """
from naspipe.cli.app import main

try:
    main()
except SystemExit as end:
    print("ended with", end.code, flush=True)
    raise
"""


def settings(folder: Path, **executor: Any) -> dict[str, Any]:
    (folder / "slow.py").write_text(SLOW)
    more = {
        "name": "csp", "stages": 2, "transport": "distributed", "timeout": 20, "checkpoint": {"every": 8}, **executor,
    }  # fmt: skip
    training = {**TINY["training"], "subnets": 64}
    return {**TINY, "task": {"name": f"{folder}/slow.py:Slow"}, "training": training, "executor": more}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("undisturbed")
    config = {**settings(folder), "executor": {"name": "sequential"}}
    return Run.create(config, folder / "run").train().search().retrain()


def results(run: Run) -> list[Any]:
    files = (run.folder.training.metrics, run.folder.trials, run.folder.best_metrics)
    return [run.digest, *(path.read_bytes() for path in files)]


class Node:
    """A torchrun agent, and what it has said."""

    def __init__(self, folder: Path, number: int, port: int, arguments: list[str], pause: float) -> None:
        self.output = folder / f"node{number}-{time.time_ns()}.txt"
        launcher = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend",
            "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", str(folder), "--local-addr", "127.0.0.1",
        ]  # fmt: skip
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1", "PAUSE": str(pause), MARK: str(folder), "TMPDIR": str(folder / "scratch"),
        }  # fmt: skip
        (folder / "scratch").mkdir(exist_ok=True)
        with self.output.open("w") as file:
            self.process = subprocess.Popen(
                [*launcher, *arguments],
                cwd=folder, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
            )  # fmt: skip

    @property
    def text(self) -> str:
        return self.output.read_text()

    @property
    def leads(self) -> bool:
        return "Run folder" in self.text

    def wait(self) -> int:
        return self.process.wait(timeout=90)


def processes_of(folder: Path) -> list[int]:
    """Return the processes, zombies aside, that have inherited the test's mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{MARK}={folder}\0".encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_for(condition: Callable[[], bool], nodes: list[Node]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline, [node.text for node in nodes]
        assert all(node.process.poll() is None for node in nodes), [node.text for node in nodes]
        time.sleep(0.05)


@contextmanager
def two_nodes(
    folder: Path, command: list[str], pause: float = 0, program: Sequence[str] = ("-m", "naspipe")
) -> Iterator[list[Node]]:
    """Start two agents; when the test has done with them, no process, port or scratch file may be left."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    nodes = [Node(folder, number, port, [*program, *command], pause) for number in range(2)]
    try:
        yield nodes
        deadline = time.monotonic() + 20
        while processes_of(folder):
            assert time.monotonic() < deadline, processes_of(folder)
            time.sleep(0.1)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    finally:
        for process in processes_of(folder):
            os.kill(process, signal.SIGKILL)
        for node in nodes:
            node.wait()


def start(folder: Path) -> list[str]:
    (folder / "run.yaml").write_text(yaml.safe_dump(settings(folder)))
    return ["run", "run.yaml", "--out", "run"]


def has_checkpoint(folder: Path) -> bool:
    return bool(list((folder / "run" / "train" / "checkpoints").glob("*/manifest.json")))


def left_in(run: Path) -> list[str]:
    return [path.name for path in run.rglob(".*") if path.name != ".lock"]


@pytest.mark.parametrize("lost", ["leader", "follower"])
def test_a_lost_node_ends_the_other_with_a_message_and_the_resumed_run_has_the_bits_of_one_process(
    lost: str, tmp_path: Path, undisturbed: Run
) -> None:
    with two_nodes(tmp_path, start(tmp_path), pause=0.1) as nodes:
        wait_for(lambda: has_checkpoint(tmp_path), nodes)
        [killed] = [node for node in nodes if node.leads == (lost == "leader")]
        [other] = [node for node in nodes if node is not killed]
        assert sorted(node.leads for node in nodes) == [False, True]
        begin = time.monotonic()
        killed.process.kill()
        assert other.wait() not in (0, None)
        assert time.monotonic() - begin < 20
    rank = 1 if lost == "leader" else 0
    message = rf"Error: .*stage {rank} .*has ended or is out of reach"
    assert re.search(message, other.text), other.text
    assert not (tmp_path / "run" / "train" / "supernet.safetensors").exists()
    if lost == "leader":
        resumed = reopen(tmp_path / "run", ["executor.stages=3", "executor.transport=in-process"]).resume()
    else:
        with two_nodes(tmp_path, ["resume", "run"]) as nodes:
            assert [node.wait() for node in nodes] == [0, 0], [node.text for node in nodes]
        assert sorted(node.leads for node in nodes) == [False, True]
        resumed = Run.open(tmp_path / "run")
    assert results(resumed) == results(undisturbed)
    assert left_in(tmp_path / "run") == []


def test_sigterm_to_both_nodes_writes_a_checkpoint_and_ends_all_with_143(tmp_path: Path, undisturbed: Run) -> None:
    (tmp_path / "ends.py").write_text(ENDS)
    with two_nodes(tmp_path, start(tmp_path), pause=0.05, program=["ends.py"]) as nodes:
        wait_for(lambda: has_checkpoint(tmp_path), nodes)
        # Not at one moment: whoever hears it first asks for the stop.
        for node in sorted(nodes, key=lambda node: node.leads):
            node.process.terminate()
            time.sleep(0.5)
        for node in nodes:
            assert node.wait() != 0
            assert "ended with 143" in node.text, node.text
    [leader] = [node for node in nodes if node.leads]
    assert re.search(r"Error: stopped by SIGTERM after \d\d of 64 subnets. To resume: naspipe resume run", leader.text)
    assert left_in(tmp_path / "run") == []
    resumed = reopen(tmp_path / "run", ["executor.stages=1", "executor.transport=in-process"]).resume()
    assert results(resumed) == results(undisturbed)


def report_of(store: Store, facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process of rank 1, on a machine of another name, tell what it is."""
    monkeypatch.setattr(agreement.socket, "gethostname", lambda: "nodeB")
    with pytest.raises(TrainingError, match="stage 0 is not"):
        agreement.compare_processes(store, 1, 2, facts, timedelta(seconds=0.01))
    monkeypatch.setattr(agreement.socket, "gethostname", lambda: "nodeA")


@pytest.mark.parametrize(
    ("key", "value", "other"),
    [("the command line", ["run", "a"], ["run", "b"]), ("the version of torch", "2.13.0", None), ("the GPU", "H", "A")],
)
def test_processes_that_differ_are_named_with_their_machines(
    key: str, value: object, other: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HashStore()
    report_of(store, {"the CPU's capability": "AVX2", key: other}, monkeypatch)
    message = f"{key} of stage 1 on nodeB is {other!r}, and of stage 0 on nodeA {value!r}."
    with pytest.raises(TrainingError, match=re.escape(message)):
        agreement.compare_processes(store, 0, 2, {"the CPU's capability": "AVX2", key: value}, timedelta(seconds=5))


def test_a_machine_that_does_not_see_the_runs_folder_is_named_to_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HashStore()
    monkeypatch.setattr(agreement, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(agreement.socket, "gethostname", lambda: "nodeB")
    with agreement.token_in(tmp_path) as token:
        agreement.require_token(token)
        elsewhere = tmp_path / "elsewhere" / token.name
        with pytest.raises(TrainingError, match=r"--out"), agreement.telling_faults(store, 1):
            agreement.require_token(elsewhere)
    assert not token.exists()
    message = f"stage 1 on nodeB cannot train: every process must see the run's folder, .* {re.escape(str(elsewhere))}"
    with pytest.raises(TrainingError, match=message):
        agreement.compare_processes(store, 0, 2, {}, timedelta(seconds=5))


def test_a_process_that_does_not_come_is_named() -> None:
    with pytest.raises(TrainingError, match=r"within executor.timeout = 0.1 s of the first, but stage 1 is not"):
        agreement.compare_processes(HashStore(), 0, 2, {}, timedelta(seconds=0.1))


def test_the_datas_digest_sees_other_samples_another_order_and_other_augmentation(tiny: dict[str, Any]) -> None:
    config = as_config(tiny)
    splits = TinyTask().load(3)

    def digest(dataset: Dataset) -> str:
        return agreement.digest_data(config, replace(splits, train=dataset))

    train = splits.train
    assert isinstance(train, TensorDataset)
    same = digest(TensorDataset(train.inputs.clone(), train.targets.clone()))
    assert same == digest(train)
    others = [TensorDataset(train.inputs + 1e-6, train.targets), TensorDataset(train.inputs, train.targets.roll(1))]
    others.append(TensorDataset(train.inputs.flip(0), train.targets.flip(0)))

    class Noisy(TensorDataset):
        def batch(self, indices: Sequence[int], key: int) -> Batch:
            noise = torch.rand(1, generator=torch.Generator().manual_seed(key))
            return Batch(super().batch(indices, key).inputs + noise, object())

    others.append(Noisy(train.inputs, train.targets))
    assert len({same, *map(digest, others)}) == 5
    assert digest(others[-1]) == digest(Noisy(train.inputs, train.targets))


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> TCPStore:
    """The store by which a leader and its followers would find each other; both are in this process."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setattr(torchrun, "find_store", lambda: TCPStore("127.0.0.1", server.port, is_master=False))
    monkeypatch.setattr(torchrun, "end_with", lambda launcher: None)
    monkeypatch.setattr(torchrun, "HEAD_START_SECONDS", 0.0)
    monkeypatch.setenv("RANK", "1")
    return server


@pytest.mark.parametrize(
    ("raised", "code"),
    [(SystemExit(2), 2), (SystemExit("no"), 1), (InputError("no"), 2), (KeyError("no"), 1), (StoppedError("no"), 143)],
)
def test_those_who_follow_end_as_the_leader_does(raised: BaseException, code: int, orders: TCPStore) -> None:
    with pytest.raises(type(raised)), torchrun.leading():
        raise raised
    with pytest.raises((torchrun.LeaderFailedError, SystemExit)) as caught:
        torchrun.follow()
    ended = caught.value
    assert (ended.code if isinstance(ended, SystemExit) else ended.exit_code) == code
    if code != 143:
        assert f"ended with code {code}; its output says why" in str(ended)


def test_those_who_follow_end_when_there_is_nothing_to_train(
    orders: TCPStore, tmp_path: Path, undisturbed: Run
) -> None:
    run = shutil.copytree(undisturbed.path, tmp_path / "run")
    # Without a retrained model there is something to do, but nothing to train.
    shutil.rmtree(run / "best")
    shutil.rmtree(run / "retrain")
    with torchrun.leading():
        reopen(run).resume()
    torchrun.follow()
    assert results(Run.open(run)) == results(undisturbed)


def test_a_leader_that_is_lost_while_others_wait_is_reported(orders: TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def check(store: Store, keys: list[str]) -> bool:
        raise DistNetworkError("Connection reset by peer")

    monkeypatch.setattr(TCPStore, "check", check)
    with pytest.raises(
        TrainingError, match=r"must live until its command has ended, but rank 1 on \S+ has lost it: .*reset by peer"
    ):
        torchrun.follow()


def test_a_gpu_is_needed_on_every_machine(tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config = as_config({**tiny, "executor": {"name": "csp", "stages": 4, "transport": "distributed"}})
    on_gpu = config.model_copy(update={"training": config.training.model_copy(update={"device": "cuda"})})
    for count, message in ((0, "needs a GPU, but here is none"), (1, "here are 2 stages and 1 GPU. Set")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        with pytest.raises(InputError, match=message):
            require_gpus(on_gpu, 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    require_gpus(on_gpu, 2)
