"""One process a stage: the bits of one stage, and an end with a message whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from conftest import TINY
from forked import CONTEXT, server_id, use_forks
from torch import Tensor

import naspipe
from naspipe import Run
from naspipe.errors import ConfigError, InputError, TrainingError
from naspipe.files import JsonLines, keep_lines
from naspipe.pipeline.action import Kind
from naspipe.training.context import as_config
from naspipe.training.distributed import launcher, requirements
from naspipe.training.distributed.transport import _tensor_specs
from naspipe.training.tensor_spec import PayloadSpec, TensorSpec, message_bytes, pack, spec_of, unpack

HERE = Path(__file__).parent
FAULTS = '''
import os, signal
from conftest import TinyTask

class Faulty(TinyTask):
    """Goes wrong in the process of the last stage, at the tenth loss."""

    calls = 0

    def fail(self):
        raise RuntimeError("my loss is broken")

    def loss(self, outputs, targets):
        Faulty.calls += "RANK" in os.environ
        if Faulty.calls == 10:
            self.fail()
        return super().loss(outputs, targets)

class Killed(Faulty):
    def fail(self):
        os.kill(os.getpid(), signal.SIGKILL)

class Exits(Faulty):
    def fail(self):
        os._exit(7)

class Stopped(Faulty):
    def fail(self):
        os.kill(os.getpid(), signal.SIGSTOP)

class Slow(Faulty):
    def loss(self, outputs, targets):
        import time
        time.sleep(0.2 * ("RANK" in os.environ))
        return super().loss(outputs, targets)
    def fail(self):
        pass
'''


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the stages' processes import conftest."""
    monkeypatch.setenv("PYTHONPATH", str(HERE))


def settings(**executor: Any) -> dict[str, Any]:
    more = {"name": "csp", "stages": 2, "transport": "distributed", "timeout": 60, **executor}
    return {**TINY, "executor": more}


def digests(config: dict[str, Any], out: Path) -> tuple[str, bytes]:
    run = Run.create(config, out).train()
    return run.digest, run.folder.training.metrics.read_bytes()


@pytest.mark.parametrize(
    ("executor", "training", "processes"),
    [
        ({"stages": 2}, {"microbatches": 2}, None),
        ({"stages": 4, "partition": [1, 1, 2, 1]}, {"delay": 3}, "forked_processes"),
        ({"stages": 2, "segments": 2}, {"optimizer": {"name": "AdamW", "lr": 0.01}}, "forked_processes"),
        ({"stages": 2, "recompute": True}, {"precision": "bf16"}, "forked_processes"),
    ],
    ids=["two", "four", "segments", "bf16"],
)
def test_processes_give_the_bits_of_one_stage(
    executor: dict[str, Any],
    training: dict[str, Any],
    processes: str | None,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    if processes:
        request.getfixturevalue(processes)
    handlers = [signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)]
    config = settings(**executor)
    config["training"] = {**TINY["training"], **training}
    one = {**config, "executor": {"name": "sequential"}}
    assert digests(config, tmp_path / "many") == digests(one, tmp_path / "one")
    assert sorted(path.name for path in (tmp_path / "many" / "train").iterdir()) == [
        "metrics.jsonl", "settings.json", "supernet.safetensors",
    ]  # fmt: skip
    assert [signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)] == handlers


def fault(tmp_path: Path, name: str, **executor: Any) -> Run:
    (tmp_path / "faults.py").write_text(FAULTS)
    config = {**settings(**executor), "task": {"name": f"{tmp_path}/faults.py:{name}"}}
    return Run.create(config, tmp_path / "out")


def children() -> list[str]:
    """Return the commands of the processes that this one has started, or had forked, and that still run."""
    found = []
    forker = server_id()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
            if int(fields[1]) in (os.getpid(), forker) and fields[0] != "Z" and status.parent.name != str(forker):
                found.append((status.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    # The resource tracker of multiprocessing stays until this process ends.
    return [command for command in found if "resource_tracker" not in command]


@pytest.mark.parametrize(
    ("name", "message", "processes"),
    [
        (
            "Faulty",
            r"(?s)stage 1 .*ended with code 1: .*action 1F\d+, subnet \d+ \(op0=.*the loss failed: RuntimeError",
            "forked_processes",
        ),
        ("Killed", r"stage 1 \(process id \d+\) was ended by SIGKILL", None),
        ("Exits", r"stage 1 \(process id \d+\) ended with code 7", "forked_processes"),
    ],
)
def test_a_stage_that_fails_ends_all_with_its_message(
    tmp_path: Path,
    name: str,
    message: str,
    processes: str | None,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if processes:
        request.getfixturevalue(processes)
    run = fault(tmp_path, name)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    start = time.monotonic()
    with pytest.raises(TrainingError, match=message):
        run.train()
    assert time.monotonic() - start < 60
    assert children() == []
    assert list(scratch.iterdir()) == []
    assert run.folder.training.metrics.exists()
    assert not run.folder.supernet.exists()


def test_a_stage_that_stops_is_a_stall_that_names_what_was_waited_for(tmp_path: Path, forked_processes: None) -> None:
    run = fault(tmp_path, "Stopped", timeout=3)
    with pytest.raises(TrainingError, match=r"stage 0 waited 3 s for 1B\d+ from stage 1"):
        run.train()
    assert children() == []


def start_run(tmp_path: Path, task: str = "Slow") -> subprocess.Popen[str]:
    """Start a run on the command line, in a process group of its own, and wait until it trains."""
    (tmp_path / "faults.py").write_text(FAULTS)
    path = tmp_path / "slow.yaml"
    path.write_text(yaml.safe_dump({**settings(), "task": {"name": f"faults.py:{task}"}}))
    # Who runs the tests in the background has SIGINT ignored, and all that is started from there inherits it.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{heard}; from naspipe.cli.app import main; main()", "train", str(path), "--out",
         str(tmp_path / "out")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)},
        start_new_session=True,
    )  # fmt: skip
    metrics = tmp_path / "out" / "train" / "metrics.jsonl"
    wait_for(lambda: metrics.exists() and metrics.stat().st_size > 0, process)
    return process


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)


def stage_processes(tmp_path: Path) -> list[int]:
    """Return the processes, zombies aside, that hold a file of this test open or were given its path."""
    found = []
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(tmp_path) in str(link.readlink()):
                found.append(int(link.parts[2]))
        except OSError:
            continue
    return sorted(set(found))


def wait_until_gone(tmp_path: Path) -> None:
    deadline = time.monotonic() + 40
    while stage_processes(tmp_path):
        assert time.monotonic() < deadline, stage_processes(tmp_path)
        time.sleep(0.2)


def test_an_interrupt_ends_every_process_and_keeps_what_was_computed(tmp_path: Path) -> None:
    process = start_run(tmp_path)
    # As a terminal does: to all of them.
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors.splitlines()[0].startswith("Interrupted. To resume: naspipe resume ")
    assert "Traceback" not in errors
    wait_until_gone(tmp_path)
    lines = (tmp_path / "out" / "train" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["index"] for line in lines] == list(range(len(lines)))
    assert len(lines) > 0


def is_stopped(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def test_a_second_interrupt_ends_at_once_what_the_first_does_not(tmp_path: Path) -> None:
    process = start_run(tmp_path, "Stopped")
    # A process that is stopped acts on no signal but SIGKILL.
    wait_for(lambda: any(map(is_stopped, stage_processes(tmp_path))), process)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.5)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors.startswith("Interrupted."), errors
    wait_until_gone(tmp_path)


def train_in_forks(config: dict[str, Any], out: Path) -> None:
    use_forks()
    Run.create(config, out).train()


def test_two_runs_at_once_do_not_disturb_each_other(tmp_path: Path, forks: None) -> None:
    started = []
    for seed in (3, 4):
        config = {**settings(timeout=200), "seed": seed}
        started.append(CONTEXT.Process(target=train_in_forks, args=(config, tmp_path / str(seed))))
        started[-1].start()
    for seed, process in zip((3, 4), started, strict=True):
        process.join(280)
        assert process.exitcode == 0
        one = {**settings(), "executor": {"name": "sequential"}, "seed": seed}
        run = Run.open(tmp_path / str(seed))
        assert (run.digest, run.folder.training.metrics.read_bytes()) == digests(one, tmp_path / f"one{seed}")


def test_stages_do_not_outlive_a_launcher_that_was_killed(tmp_path: Path) -> None:
    process = start_run(tmp_path)
    assert stage_processes(tmp_path)
    process.kill()
    process.communicate(timeout=60)
    wait_until_gone(tmp_path)


def test_a_plugin_that_other_processes_cannot_import_is_refused(tmp_path: Path) -> None:
    from conftest import TinyTask

    naspipe.register_task("local-by-test_processes")(TinyTask)
    config = {**settings(), "task": {"name": "local-by-test_processes"}}
    with pytest.raises(InputError, match=r"'local-by-test_processes' is known to this process only .*file.py:Class"):
        Run.create(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_backend_or_a_gpu_that_is_missing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = as_config(settings(stages=4, partition="static"))
    monkeypatch.setattr(requirements, "distributed_backends", lambda: ["mpi"])
    with pytest.raises(InputError, match="needs torch's backend gloo, but this build of torch has mpi"):
        requirements.check_stage_processes(config)
    monkeypatch.setattr(requirements, "distributed_backends", lambda: ["gloo", "nccl"])
    on_gpu = config.model_copy(update={"training": config.training.model_copy(update={"device": "cuda"})})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match=r"needs a GPU for each stage, but here are 4 stages and 2 GPUs\. Set"):
        requirements.check_stage_processes(on_gpu)


SQUEEZE = """
from conftest import TinySpace
from torch import nn
from naspipe import ChoiceBlock

class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
    def forward(self, x):
        return self.linear(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)

class Squeeze(TinySpace):
    # Gradients with dimensions of size 1 and odd strides cross the boundaries.
    def blocks(self):
        yield nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.AdaptiveAvgPool2d(1))
        for decision in self.decisions:
            yield ChoiceBlock(decision, {
                o: Turned() if o == "skip" else nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU())
                for o in decision.options
            })
        yield nn.Sequential(nn.Conv2d(8, 3, 1), nn.Flatten())
"""


def test_dimensions_of_size_one_give_the_same_bits_over_messages(tmp_path: Path, forked_processes: None) -> None:
    (tmp_path / "squeeze.py").write_text(SQUEEZE)
    config = {**settings(stages=2, partition=[2, 3]), "space": {"name": f"{tmp_path}/squeeze.py:Squeeze"}}
    one = {**config, "executor": {"name": "sequential"}}
    assert digests(config, tmp_path / "many") == digests(one, tmp_path / "one")


PERSONAL = """
import os
from naspipe_strategies.uniform import UniformSampler

class Personal(UniformSampler):
    def draw(self, index):
        return super().draw(index + os.getpid())
"""


def test_processes_that_draw_other_subnets_are_found_out(tmp_path: Path, forked_processes: None) -> None:
    (tmp_path / "personal.py").write_text(PERSONAL)
    config = {**settings(name="one_f_one_b"), "sampler": {"name": f"{tmp_path}/personal.py:Personal"}}
    run = Run.create(config, tmp_path / "out")
    with pytest.raises(TrainingError, match="must plan and draw the same subnets, but differ from"):
        run.train()


def test_more_processes_than_blocks_are_refused(tmp_path: Path) -> None:
    with pytest.raises((InputError, ConfigError), match="there are 9 stages for 5 blocks"):
        Run.create(settings(stages=9), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_message_holds_any_nest_and_says_what_is_missing() -> None:
    payload = {
        "a": torch.randn(3, 2).t(), "n": None, "i": torch.arange(5), "b": torch.tensor(True), "x": "text",
        "h": torch.randn(3, dtype=torch.bfloat16), "e": torch.ones(1, 1).expand(2, 2), "z": torch.zeros(0, 3),
    }  # fmt: skip
    spec = spec_of(payload)
    tensors = [value for value in payload.values() if isinstance(value, Tensor)]
    message = pack(tensors, spec.tensors, b"12345678")
    assert message.numel() == message_bytes(spec.tensors)
    for sent, received in zip(tensors, unpack(message, spec.tensors)[0], strict=True):
        assert received is not None
        assert received.dtype == sent.dtype
        assert torch.equal(received, sent)
    specs = [TensorSpec(torch.float32, (2,), True)] * 2
    for flag in (True, False):
        packed = pack([None, None], specs, b"12345678", flag)
        assert unpack(packed, specs) == ([None, None], flag, b"12345678")
    again, _, _ = unpack(pack([None, torch.ones(2)], specs, b"12345678"), specs)
    assert again[0] is None
    assert torch.equal(again[1], torch.ones(2))


def test_gradients_have_a_slot_for_every_leaf_and_bytes_only_where_they_can_be() -> None:
    leaf = TensorSpec(torch.float32, (4,), True)
    spec = PayloadSpec(None, (leaf, None, TensorSpec(torch.int64, (9,), False), "text"))
    specs = _tensor_specs(Kind.BACKWARD, spec)
    assert [spec.num_bytes for spec in specs] == [16, 0, 0, 0]
    assert spec.tensors == [leaf, spec.slots[2]]


def test_progress_is_told_once_and_follows_a_log_that_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "POLL_SECONDS", 0.01)
    path, seen = tmp_path / "log.jsonl", []

    def wait_for(expected: list[int]) -> None:
        end = time.monotonic() + 30
        while seen != expected and time.monotonic() < end:
            time.sleep(0.01)
        assert seen == expected

    def append(*numbers: int) -> None:
        with JsonLines(path) as log:
            for number in numbers:
                log.append({"index": number})

    with launcher.watching_lines(path, lambda line: seen.append(line["index"])):
        append(0, 1, 2)
        wait_for([0, 1, 2])
    with launcher.watching_lines(path, lambda line: seen.append(line["index"])):
        append(3)
        wait_for([0, 1, 2, 3])
        keep_lines(path, 2)
        wait_for([0, 1, 2, 3, 1])
        append(2, 3)
        wait_for([0, 1, 2, 3, 1, 2, 3])
