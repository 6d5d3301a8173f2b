"""Traces of real runs, judged; seeded bugs found; what must not matter does not."""

from __future__ import annotations

import copy
import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import TINY, Command, TinyTask
from torch import Tensor

from naspipe import Run
from naspipe.errors import ConfigError
from naspipe.pipeline.action import Kind
from naspipe.pipeline.planfile import plan_to_json, read_plan, write_plan
from naspipe.pipeline.validator import find_violations
from naspipe.training.context import RunContext, as_config
from naspipe.training.layers import Layer, Snapshot
from naspipe.training.part import Part
from naspipe.verification.comparison import COLUMNS, Comparison
from naspipe.verification.equality import TracedTraining, Verdict, find_difference, train_once, verify


def outcome(executor: dict[str, Any], **training: Any) -> TracedTraining:
    data = copy.deepcopy({**TINY, "executor": executor})
    data["sampler"] = training.pop("sampler", data["sampler"])
    data["training"].update(training)
    return train_once(RunContext.load(data))


CSP = {"name": "csp", "stages": 3}


def test_a_recorded_trace_keeps_its_contract_and_has_every_version(tmp_path: Path) -> None:
    for executor, training in (
        (CSP, {"delay": 2, "microbatches": 2}),
        ({"name": "gpipe", "stages": 2, "options": {"bulk": 3}}, {"delay": None}),
        ({"name": "pipedream", "stages": 3}, {"delay": None}),
        ({"name": "sequential"}, {"delay": 0}),
    ):
        trace = outcome(executor, **training).trace
        assert find_violations(trace) == []
        assert trace.versions is not None
        assert [len(row) for row in trace.versions] == [len(row) for row in trace.actions]
        path = tmp_path / f"{executor['name']}.json"
        write_plan(trace, path)
        assert plan_to_json(read_plan(path)) == plan_to_json(trace)


def seeded(monkeypatch: pytest.MonkeyPatch, name: str, bug: Callable[..., Any]) -> list[str]:
    """Plant a bug into the layers' bookkeeping and return what the validator says of the trace."""
    monkeypatch.setattr(Layer, name, bug)
    trace = outcome({"name": "csp", "stages": 2, "window": 4}, delay=3).trace
    return [violation.message for violation in find_violations(trace)]


def test_a_read_of_the_wrong_version_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    init = Layer.__init__

    def later(self: Layer, *arguments: Any, delay: int | None = None, **more: Any) -> None:
        init(self, *arguments, delay=None if delay is None else delay + 1, **more)

    messages = seeded(monkeypatch, "__init__", later)
    assert any("is recorded to have seen layer 'always_active' of block 0 at version" in m for m in messages)


def test_an_update_applied_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    update = Layer.update

    def twice(self: Layer, subnet: int, snapshot: Snapshot, lr: float, skip: bool = False) -> None:
        update(self, subnet, snapshot, lr, skip)
        if subnet == 4 and self._delay is None:
            self._step([t.grad for t in snapshot.tensors.values()], lr)

    messages = seeded(monkeypatch, "update", twice)
    assert any("is recorded to have seen layer" in m and "due under causal" in m for m in messages)


def test_an_update_that_is_dropped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    update = Layer.update

    def late(self: Layer, subnet: int, snapshot: Snapshot, lr: float, skip: bool = False) -> None:
        if subnet != 4 or self._delay is not None:
            update(self, subnet, snapshot, lr, skip)

    messages = seeded(monkeypatch, "update", late)
    assert any("is recorded to have seen layer" in message for message in messages)


def violations_of(executor: dict[str, Any], **training: Any) -> list[tuple[str, str]]:
    return [(found.rule, found.message) for found in find_violations(outcome(executor, **training).trace)]


def test_an_update_that_comes_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    backward, update = Part.backward, Part.update

    def at_once(self: Part, subnet: int, *arguments: Any) -> Any:
        result = backward(self, subnet, *arguments)
        state = self._subnets[subnet]
        update(self, subnet, 0.05)
        self._subnets[subnet] = state
        return result

    def done_already(self: Part, subnet: int, lr: float, skip: bool = False) -> None:
        del self._subnets[subnet]

    bulk = {"name": "gpipe", "stages": 2, "options": {"bulk": 3}}
    assert violations_of(bulk, delay=None) == []
    monkeypatch.setattr(Part, "backward", at_once)
    monkeypatch.setattr(Part, "update", done_already)
    found = violations_of(bulk, delay=None)
    # The updates of a bulk come after all its backwards: by then each has seen those of the subnets after it.
    assert any(r == "update" and "0U0 is recorded to have seen layer 'always_active' of block 0 at version 3, but "
               "version 0 is due under flush(3)" in message for r, message in found)  # fmt: skip


def test_an_update_that_comes_too_late_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    update = Part.update
    waiting: dict[int, tuple[Any, ...]] = {}

    def one_late(self: Part, subnet: int, lr: float, skip: bool = False) -> None:
        if id(self) in waiting:
            update(self, *waiting[id(self)])
        waiting[id(self)] = (subnet, lr, skip)

    monkeypatch.setattr(Part, "update", one_late)
    # Uniform: neighbours share layers. A longer run ends by itself: an always-active version is not there when due.
    found = [
        message
        for rule, message in violations_of(CSP, subnets=12, delay=8, sampler={"name": "uniform"})
        if rule == "read"
    ]
    assert any("is recorded to have seen layer 'conv" in message and "due under causal" in message for message in found)


def test_an_update_of_the_wrong_version_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    update = Layer.update

    def out_of_order(self: Layer, subnet: int, snapshot: Snapshot, lr: float, skip: bool = False) -> None:
        if self._delay is None:
            update(self, subnet, snapshot, lr, skip)
        else:
            # What comes early does not wait for its turn.
            update(self, self.version, snapshot, lr, skip)

    executor = {"name": "csp", "stages": 3, "partition": [1, 1, 3]}
    more: dict[str, Any] = {"delay": 6, "sampler": {"name": "uniform"}}
    trace = outcome(executor, **more).trace
    assert find_violations(trace) == []
    order = [planned.action.subnet for planned in trace.actions[2] if planned.action.kind is Kind.UPDATE]
    assert order != sorted(order)
    monkeypatch.setattr(Layer, "update", out_of_order)
    found = violations_of(executor, **more)
    assert {rule for rule, _ in found} == {"update"}
    assert "is recorded to have seen layer 'always_active' of block 0 at version" in found[0][1]


def test_a_difference_names_the_first_subnet_and_layer() -> None:
    one, other = outcome(CSP, subnets=8), outcome(CSP, subnets=8, clip_norm=0.01)
    text = find_difference(one, other)
    assert text.startswith("loss of subnet ")
    assert "; layer 0/always_active" in text
    assert find_difference(one, one) == ""


class Spiky(TinyTask):
    """The loss of some batches is not finite."""

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        # Known by the batch alone, so that every executor meets the same.
        factor = float("nan") if int(targets.sum()) % 5 == 0 and len(targets) > 2 else 1.0
        return super().loss(outputs, targets) * factor


@pytest.mark.parametrize("microbatches", [1, 2])
def test_a_subnet_that_is_not_finite_updates_nothing_in_every_executor_alike(microbatches: int) -> None:
    data = {**TINY, "training": {**TINY["training"], "on_nonfinite": "skip", "microbatches": microbatches}}
    outcomes = []
    for executor in ({"name": "sequential"}, CSP, {"name": "gpipe", "stages": 2}, {"name": "one_f_one_b", "stages": 3}):
        config = as_config({**data, "executor": executor, "task": {"name": "test_pipeline_verify:Spiky"}})
        outcomes.append(train_once(RunContext.load(config)))
        assert find_violations(outcomes[-1].trace) == []
        assert find_difference(outcomes[0], outcomes[-1]) == ""
    skipped = sum(loss is None for loss in outcomes[0].losses)
    assert 0 < skipped < 30


def test_a_skipped_subnet_leaves_weights_and_optimizer_and_advances_the_version() -> None:
    from test_layers import backward, make

    from naspipe.files import digest_tensors

    layer, parameter = make(True, 0, "AdamW")
    for subnet in range(2):
        snapshot = layer.read(subnet)
        backward(snapshot, subnet)
        layer.update(subnet, snapshot, 0.1)
    before = digest_tensors({"w": parameter})
    snapshot = layer.read(2)
    backward(snapshot, 2)
    layer.update(2, snapshot, 0.1, skip=True)
    assert layer.version == 3
    assert digest_tensors({"w": parameter}) == before
    assert layer.optimizer is not None
    assert int(layer.optimizer.state[parameter]["step"]) == 2


def checks(**more: Any) -> dict[tuple[str, int], Verdict]:
    settings: dict[str, Any] = {
        "executors": ["csp"],
        "stages": [2],
        "transports": ["in-process"],
        "subnets": 10,
        **more,
    }
    return {(check.executor, check.stages): check for check in verify(as_config(TINY), **settings)}


def test_verify_compares_within_what_contracts_promise() -> None:
    found = checks(executors=["csp", "gpipe:bulk=3", "pipedream"], stages=[1, 3])
    assert [key for key, check in found.items() if not check.kept] == []
    assert found["csp", 3].reference == "sequential on 1 stage, in-process"
    assert found["gpipe:bulk=3", 3].reference == "gpipe:bulk=3 on 1 stage, in-process"
    assert found["pipedream", 3].reference == ""
    assert found["pipedream", 3].outcome.digests != found["pipedream", 1].outcome.digests


def test_verify_finds_a_runtime_that_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    update = Layer.update

    def bent(self: Layer, subnet: int, snapshot: Snapshot, lr: float, skip: bool = False) -> None:
        # Right versions, wrong numbers, and only where a part starts late in the supernet.
        update(self, subnet, snapshot, lr * (1 + 1e-6 * (len(running) > 1)), skip)

    running: list[int] = []
    init = Part.__init__

    def count(self: Part, blocks: Any, layers: Any, first_block: int, *more: Any) -> None:
        running[:] = [] if first_block == 0 else running
        running.append(first_block)
        init(self, blocks, layers, first_block, *more)

    monkeypatch.setattr(Layer, "update", bent)
    monkeypatch.setattr(Part, "__init__", count)
    check = checks()["csp", 2]
    assert not check.violations
    assert not check.kept
    assert check.difference.startswith("loss of subnet ")


def test_verify_prints_a_table_and_ends_with_0_only_if_all_was_kept(
    command: Command, tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny))
    code, text, _ = command("verify", path, "--executors", "csp,pipedream", "--stages", "1,2", "--subnets", 6)
    assert code == 0
    assert text.count("equals sequential on 1 stage, in-process") == 2
    assert "results depend on the number of stages" in text
    assert text.endswith("Every contract was kept.\n")
    monkeypatch.setattr("naspipe.verification.equality.find_difference", lambda one, other: "layer 0/x")
    code, text, _ = command("verify", path, "--executors", "csp", "--stages", "2", "--subnets", 6)
    assert code == 1
    assert "DIFFERS from sequential on 1 stage, in-process: layer 0/x" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--stages", "9"), "there are 9 stages for 5 blocks"),
        (("--executors", "cps"), "Did you mean 'csp'?"),
        (("--transport", "pigeon"), "--transport must be of in-process, distributed, but got 'pigeon'"),
    ],
)
def test_verify_refuses_what_does_not_fit_before_it_trains(
    command: Command, tmp_path: Path, tiny: dict[str, Any], arguments: tuple[str, ...], message: str
) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(tiny))
    code, text, errors = command("verify", path, *arguments)
    assert code == 2
    assert message in errors
    assert text == ""


def test_processes_are_verified_too(forked_processes: None) -> None:
    found = list(verify(as_config(TINY), ["csp"], [2], ["distributed"], 8))
    assert [check.kept for check in found] == [True, True]
    assert found[1].reference == "sequential on 1 stage, in-process"


def test_an_unknown_answer_to_a_loss_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ConfigError, match="training.on_nonfinite: must be 'stop' or 'skip'"):
        as_config({**TINY, "training": {"on_nonfinite": "ignore"}})


@pytest.mark.parametrize("transport", ["in-process", "distributed"])
def test_a_traced_training_leaves_a_plan_that_is_judged_and_drawn(
    command: Command, tmp_path: Path, tiny: dict[str, Any], transport: str, forked_processes: None
) -> None:
    path, out = tmp_path / "tiny.yaml", tmp_path / "out"
    path.write_text(yaml.safe_dump({**tiny, "executor": {**CSP, "stages": 2, "transport": transport}}))
    code, text, errors = command("train", path, "--out", out, "--trace")
    assert code == 0, errors
    line = next(line for line in text.splitlines() if line.startswith("Trace"))
    assert f"{out}/train/trace.json; bubble 0." in line
    assert line.endswith("; causal: kept")
    code, text, _ = command("plan", out / "train" / "trace.json")
    assert code == 0
    assert "Contract   causal: kept" in text
    assert command("report", out)[0] == 0
    page = (out / "report.html").read_text()
    section = page[page.index("<h2>Pipeline</h2>") :].partition("</section>")[0]
    planned, measured = read_plan(out / "train" / "plan.json"), read_plan(out / "train" / "trace.json")
    assert planned.versions is None
    assert f"<tr><td>bubble</td><td>{planned.bubble:.3f}</td><td>{measured.bubble:.3f}</td></tr>" in section
    assert f"<td>makespan</td><td>{planned.makespan:,} ticks</td><td>{measured.makespan / 1e6:,.2f} s</td>" in section
    assert section.count("<td>stage ") == 2
    assert "The trace keeps its contract, causal" in section
    assert ("All stages ran in one process" in section) == (transport == "in-process")
    assert 'id="timeline-planned"' in section
    assert "microsecond (the first 80 of " in section


def test_a_training_that_was_not_traced_has_no_section_on_its_pipeline(tmp_path: Path, tiny: dict[str, Any]) -> None:
    tiny["training"]["subnets"] = 4
    run = Run.create(tiny, tmp_path / "out").train()
    assert "<h2>Pipeline</h2>" not in run.report().read_text()
    assert not run.folder.training.plan.exists()


def test_compare_prints_and_writes_a_row_for_each_training(
    command: Command, tmp_path: Path, tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    path, rows_file, page = tmp_path / "tiny.yaml", tmp_path / "rows.csv", tmp_path / "figure.html"
    path.write_text(yaml.safe_dump({**tiny, "task": {"name": "conftest:TinyTask"}}))
    code, text, errors = command(
        "compare", path, "--executors", "csp,pipedream", "--stages", "1,2", "--samplers", "uniform,spaced",
        "--transport", "in-process", "--subnets", 12, "--csv", rows_file, "--html", page,
    )  # fmt: skip
    assert code == 0, errors
    assert text.splitlines()[0].split()[:3] == ["executor", "sampler", "stages"]
    rows = list(csv.DictReader(rows_file.read_text().splitlines()))
    assert len(rows) == 2 * 2 * 2
    assert list(rows[0]) == list(COLUMNS)
    for row in rows:
        assert float(row["subnets_per_second"]) > 0
        assert 0 <= float(row["planned_bubble"]) < 1
        assert float(row["peak_memory_mib"]) > 50
        assert float(row["final_loss"]) > 0
    digests = {(r["executor"], r["sampler"], r["stages"]): r["digest"] for r in rows}
    assert digests["csp", "spaced", "1"] == digests["csp", "spaced", "2"]
    assert digests["pipedream", "spaced", "1"] != digests["pipedream", "spaced", "2"]
    assert digests["csp", "uniform", "1"] != digests["csp", "spaced", "1"]
    assert page.read_text().count("<script src=") == 0


def test_compare_measures_each_process(tmp_path: Path, forked_processes: None) -> None:
    rows = list(Comparison(as_config(TINY), ["csp"], [], [2], "distributed", 8).run())
    assert len(rows) == 1
    assert len(rows[0]["peak_memory_mib"].split()) == 2
    assert rows[0]["sampler"] == "spaced"
