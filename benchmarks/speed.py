"""Measure the runtime: python benchmarks/speed.py [repeats, 5 by default]. About ten minutes on two cores.

16 equal blocks of 8 candidates, batch 256, SGD with momentum, one thread a process; median and range over repeats
taken in turn. (a) One stage against a hand-written single-path loop in plain PyTorch. (b) csp on two processes, with
spaced sampling, against two independent one-stage processes side by side. (c) gpipe on two processes and one fixed
architecture, four micro-batches, against torch.distributed.pipelining's GPipe schedule of the same modules. (d) csp,
gpipe and pipedream on two processes, with uniform and spaced sampling, and their bubbles: measured, and planned from
measured costs. Throughput is subnets per second from the first action to the last.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn import functional as F

from naspipe import Supernet
from naspipe.supernet.determinism import deterministic
from naspipe.tasks.data import EpochOrder, move_batch
from naspipe.training.context import RunContext
from naspipe.training.files import TrainingFiles
from naspipe.training.profiling import measure_costs
from naspipe.training.session import TrainingSession
from naspipe.training.supernet_training import train_supernet

HERE = Path(__file__).resolve().parent
REPEATS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
SUBNETS = 40
UNIFORM = {"name": "uniform"}
SPACED = {"name": "spaced", "distance": 4}
FIXED = {"name": f"{HERE}/speed_space.py:FixedSampler"}
MICROBATCHES = 4


def speed_settings(
    executor: dict[str, Any], sampler: dict[str, Any], seed: int = 0, microbatches: int = 1
) -> dict[str, Any]:
    """Return the settings of one training."""
    delay = None if executor["name"] == "pipedream" else 8
    return {
        "seed": seed,
        "space": {"name": f"{HERE}/speed_space.py:SpeedSpace"},
        "task": {"name": f"{HERE}/speed_space.py:Noise"},
        "training": {"subnets": SUBNETS, "batch_size": 256, "microbatches": microbatches, "delay": delay},
        "sampler": sampler,
        "executor": executor,
        "search": {"strategy": {"name": "random"}},
    }


def one_stage(seed: int = 0, device: str = "cpu") -> float:
    """Train on one stage in this process; return subnets per second."""
    settings = speed_settings({"name": "sequential"}, SPACED, seed)
    settings["training"]["device"] = device
    session = TrainingSession(RunContext.load(settings))
    start = time.perf_counter()
    session.run()
    return SUBNETS / (time.perf_counter() - start)


def by_hand(device: str = "cpu") -> float:
    """Train the same subnets in a plain loop: ordinary modules, in place, one optimizer a layer."""
    components = RunContext.load(speed_settings({"name": "sequential"}, SPACED)).components
    with deterministic(1, device):
        supernet = Supernet(components.space, 0).to(device).train()
        order = EpochOrder(components.task.load(0).train, 256, 0, "train")
        optimizers: dict[tuple[int, str], torch.optim.Optimizer] = {}
        start = time.perf_counter()
        for y in range(SUBNETS):
            architecture = components.sampler.draw(y)
            batch = move_batch(order.batch(y), device)
            loss = F.cross_entropy(supernet(batch.inputs, architecture), batch.targets)
            loss.item()
            loss.backward()
            for used in supernet.used_layers(architecture):
                for layer in used:
                    key = (layer.block, layer.name)
                    if key not in optimizers:
                        parameters = list(layer.parameters.values())
                        optimizers[key] = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
                    optimizers[key].step()
                    optimizers[key].zero_grad()
        return SUBNETS / (time.perf_counter() - start)


def two_processes(executor: str, sampler: dict[str, Any], microbatches: int = 1) -> tuple[float, float]:
    """Train with one process for each of two stages; return subnets per second and the measured bubble."""
    layout = {"name": executor, "stages": 2, "transport": "distributed", "checkpoint": {"every": None}}
    context = RunContext.load(speed_settings(layout, sampler, 0, microbatches))
    with tempfile.TemporaryDirectory() as folder:
        recorded = train_supernet(context, TrainingFiles(Path(folder)), record=True).actions
    span = (max(end for _, _, end, _ in recorded) - min(start for _, start, _, _ in recorded)) / 1e6
    busy = sum(end - start for _, start, end, _ in recorded) / 1e6
    return SUBNETS / span, 1 - busy / (2 * span)


def side_by_side() -> float:
    """Train two independent supernets in two processes; return the subnets per second of both."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(one_stage, [0, 1], chunksize=1)  # The processes have started and are warm.
        return sum(pool.map(one_stage, [2, 3], chunksize=1))


def torch_gpipe() -> float:
    """Train the fixed architecture by torch's GPipe schedule in two processes; return subnets per second."""
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        queue = context.Queue()
        ranks = [context.Process(target=torch_stage, args=(rank, f"{folder}/store", queue)) for rank in (0, 1)]
        for process in ranks:
            process.start()
        seconds = queue.get(timeout=300)
        for process in ranks:
            process.join(timeout=60)
    return SUBNETS / seconds


def torch_stage(rank: int, store: str, queue: Any) -> None:
    """Train one half of the fixed architecture; the first rank reports the seconds."""
    distributed.init_process_group("gloo", store=distributed.FileStore(store, 2), rank=rank, world_size=2)
    components = RunContext.load(speed_settings({"name": "sequential"}, FIXED)).components
    with deterministic(1, "cpu"):
        subnet = Supernet(components.space, 0).extract(components.sampler.draw(0)).train()
        half = subnet[: len(subnet) // 2] if rank == 0 else subnet[len(subnet) // 2 :]
        stage = PipelineStage(half, rank, 2, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, MICROBATCHES, loss_fn=F.cross_entropy)
        order = EpochOrder(components.task.load(0).train, 256, 0, "train")
        optimizer = torch.optim.SGD(half.parameters(), lr=0.05, momentum=0.9)
        distributed.barrier()
        start = time.perf_counter()
        for y in range(SUBNETS):
            batch = order.batch(y)
            if rank == 0:
                schedule.step(batch.inputs)
            else:
                losses: list[torch.Tensor] = []
                schedule.step(target=batch.targets, losses=losses)
                torch.stack(losses).mean().item()
            optimizer.step()
            optimizer.zero_grad()
        distributed.barrier()
        if rank == 0:
            queue.put(time.perf_counter() - start)
    distributed.destroy_process_group()


def show(name: str, values: list[float], unit: str = "subnets/s") -> float:
    """Print median and range; return the median."""
    median = statistics.median(values)
    print(f"{name:<34} {median:6.2f} {unit}, {min(values):.2f} to {max(values):.2f}", flush=True)
    return median


def in_turn(*measures: Callable[[], Any]) -> list[list[Any]]:
    """Return the repeats of each measure, taken in turn."""
    rounds = [[measure() for measure in measures] for _ in range(REPEATS)]
    return [list(column) for column in zip(*rounds, strict=True)]


def main() -> None:
    """Print all figures."""
    one_stage()
    hand, stage = in_turn(by_hand, one_stage)
    ratio = show("one stage", stage) / show("hand-written loop", hand)
    print(f"(a) one stage / hand-written loop: {ratio:.3f}\n")
    pairs, pipelines = in_turn(side_by_side, lambda: two_processes("csp", SPACED))
    ratio = show("csp, two processes", [p[0] for p in pipelines]) / show("two independent processes", pairs)
    print(f"(b) csp / two independent processes: {ratio:.3f}\n")
    peers, pipelines = in_turn(torch_gpipe, lambda: two_processes("gpipe", FIXED, MICROBATCHES))
    ratio = show("gpipe, fixed architecture", [p[0] for p in pipelines]) / show("torch's GPipe", peers)
    print(f"(c) gpipe / torch's GPipe: {ratio:.3f}\n")
    cases = [(e, s) for e in ("csp", "gpipe", "pipedream") for s in (UNIFORM, SPACED)]
    for (executor, sampler), results in zip(
        cases, in_turn(*[lambda c=case: two_processes(*c) for case in cases]), strict=True
    ):
        context = RunContext.load(speed_settings({"name": executor, "stages": 2, "costs": "profile"}, sampler))
        measure_costs(context)
        planned = context.planning.plan().bubble
        show(f"(d) {executor}, {sampler['name']}", [r[0] for r in results])
        show(f"    bubble (planned {planned:.3f})", [r[1] for r in results], "of the time")


if __name__ == "__main__":
    main()
