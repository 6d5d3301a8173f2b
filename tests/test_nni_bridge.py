"""The bridge to NNI; NNI 3.0 is really installed where these run."""

from __future__ import annotations

import logging
import platform
import random
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from forked import call_in_fork
from torch import Tensor, nn

import naspipe
from naspipe import Architecture, ClassificationTask, NaspipeWarning, SearchSpace, Splits, Supernet, split_tensors
from naspipe.errors import ArchitectureError, ConfigError, InputError, PluginError, SpaceError
from naspipe.keys import derive_key
from naspipe.training.context import as_config
from naspipe.verification.equality import verify
from naspipe_spaces.nni_bridge.block import NNIBlock
from naspipe_spaces.nni_bridge.choosers import Chooser
from naspipe_spaces.nni_bridge.library import load_nni
from naspipe_spaces.nni_bridge.space import NNISpace

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="NNI 3.0 has wheels for Linux on x86-64 only"
)

MODELS = ["Chain", "Tied", "Deep", "Inputs", "Pairs", "Widths", "Shared", "Branching", "Moods"]

SHUFFLENET = "nni.nas.hub.pytorch:ShuffleNetSpace"


@pytest.fixture(scope="module", autouse=True)
def nni() -> Any:
    # Imported here, with its warnings kept back, so that the modules of the tests may import it as users' do.
    return load_nni()


def space_of(name: str, **parameters: Any) -> NNISpace:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NaspipeWarning)
        return NNISpace(f"nni_models:{name}", **parameters)


def images(samples: int = 6) -> Tensor:
    return torch.randn(samples, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def run_module(module: nn.Module, *inputs: Any) -> Tensor:
    torch.manual_seed(7)
    output: Tensor = module(*inputs)
    return output


def original(space: NNISpace, seed: int) -> Any:
    """NNI's model space itself, with the weights that the supernet of this seed starts with."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_key(seed, "supernet", "init", 0))
        return space._source.build()


class NNISupernet:
    """NNI's own supernet, with the weights of one of NASPipe's."""

    def __init__(self, nni: Any, space: NNISpace, supernet: Supernet) -> None:
        with warnings.catch_warnings():
            # NNI 3.0 wants keyword arguments of whoever makes a module (November 2026).
            warnings.filterwarnings("ignore", "Found positional arguments", UserWarning)
            self.model = nni.strategy.RandomOneShot().mutate_model(original(space, 0))
        weights = self.model.state_dict()
        for name, tensor in supernet.state_dict().items():
            # Without the names of NASPipe's blocks and gates it is NNI's own name.
            name = name.partition(".module.")[2].replace(".module.", ".")
            assert name in weights
            weights[name] = tensor
        self.model.load_state_dict(weights)

    def resampled(self, sample: Mapping[str, Any], x: Tensor) -> Tensor:
        for module in self.model.modules():
            if hasattr(module, "resample"):
                module.resample(memo=sample)
        return run_module(self.model, x)

    def frozen(self, sample: Mapping[str, Any], x: Tensor) -> Tensor:
        return run_module(self.model.freeze(sample), x)


def draws(space: SearchSpace, count: int = 6) -> list[Architecture]:
    return [space.random_architecture(random.Random(seed)) for seed in range(count)]


def test_a_label_is_a_decision_and_a_candidate_a_strict_layer() -> None:
    supernet = Supernet(space_of("Chain"), 0)
    assert [decision.name for decision in supernet.space.decisions] == ["step0", "step1", "step2"]
    assert supernet.space.size == 4**3
    rows = [[layer.name for layer in supernet.layers() if layer.block == block] for block in range(len(supernet))]
    step = ["conv1", "conv3", "grouped"]
    assert rows == [
        ["always_active"], *([f"steps.{i}.{name}" for name in step] for i in range(3)), ["always_active"],
    ]  # fmt: skip


def test_an_architecture_uses_the_layers_that_it_chose() -> None:
    space = space_of("Chain")
    chosen = space.architecture({"step0": "conv3", "step1": "skip", "step2": "grouped"})
    names = [[layer.name for layer in row] for row in Supernet(space, 0).used_layers(chosen)]
    assert names == [["always_active"], ["steps.0.conv3"], [], ["steps.2.grouped"], ["always_active"]]


def test_choices_by_one_label_follow_one_decision() -> None:
    space = space_of("Tied")
    supernet = Supernet(space, 0)
    assert space.size == 2
    names = [[layer.name for layer in row] for row in supernet.used_layers(space.architecture({"both": 1}))]
    assert names == [["always_active"], ["first.1"], ["second.1"], ["always_active"]]


def test_what_is_chosen_within_an_option_exists_only_under_it() -> None:
    space = space_of("Deep")
    whens = {decision.name: (decision.parent, decision.parent_options) for decision in space.decisions}
    assert whens == {
        "depth": (None, ()), "step0": (None, ()), "inner0": ("step0", ("nested",)),
        "step1": ("depth", (2, 3)), "inner1": ("step1", ("nested",)),
        "step2": ("depth", (3,)), "inner2": ("step2", ("nested",)),
    }  # fmt: skip
    assert space.size == 3 + 3 * 3 + 3 * 3 * 3
    shallow = space.architecture({"depth": 1, "step0": "nested", "inner0": "relu"})
    names = [[layer.name for layer in row] for row in Supernet(space, 0).used_layers(shallow)]
    assert names == [["always_active"], ["steps.blocks.0.nested.0"], [], [], ["always_active"]]


@pytest.mark.parametrize("name", ["Chain", "Tied", "Deep", "Inputs", "Pairs", "Widths"])
def test_architectures_and_samples_are_converted_both_ways(name: str) -> None:
    space = space_of(name)
    model = original(space, 0)
    for architecture in draws(space):
        sample = space.to_sample(architecture)
        model.validate(sample)
        assert sample.keys() == model.simplify().keys()
        assert space.from_sample(sample) == architecture
        assert space.parse(architecture.to_json()) == architecture


def test_a_sample_that_nni_drew_is_an_architecture() -> None:
    space = space_of("Inputs")
    sample = {"one": [2], "two": [2, 0], "end": "conv3"}
    assert dict(space.from_sample(sample)) == {"one": 2, "two": (0, 2), "end": "conv3"}


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"one": [0], "two": [0, 1], "end": "conv5"}, "'end' has no option 'conv5'"),
        ({"one": [0], "two": [0, 1], "endings": "conv1"}, "must have only its labels, but has endings"),
        ({"one": [0], "two": [0, 1]}, "must make decision 'end'"),
        ({"one": [0], "two": [0, 9], "end": "conv1"}, "'two' has no option"),
    ],
)
def test_a_wrong_sample_is_refused(sample: dict[str, Any], message: str) -> None:
    with pytest.raises(ArchitectureError, match=message):
        space_of("Inputs").from_sample(sample)


@pytest.mark.parametrize("name", MODELS)
def test_a_subnet_computes_what_nni_computes_with_these_weights(name: str, nni: Any) -> None:
    space = space_of(name)
    supernet = Supernet(space, 5)
    theirs = NNISupernet(nni, space, supernet)
    for architecture in draws(space):
        sample = space.to_sample(architecture)
        output = run_module(supernet, images(), architecture)
        assert torch.equal(theirs.resampled(sample, images()), output)
        if name != "Pairs":  # NNI's cells of a factory cannot be frozen with their weights
            assert torch.equal(theirs.frozen(sample, images()), output)


@pytest.mark.parametrize("name", MODELS)
def test_an_extracted_subnet_has_no_choices_and_computes_the_same_bits(name: str, nni: Any) -> None:
    space = space_of(name)
    supernet = Supernet(space, 1)
    for architecture in draws(space):
        subnet = supernet.extract(architecture)
        modules = list(subnet.modules())
        assert not [m for m in modules if isinstance(m, (NNIBlock, Chooser, nni.nn.LayerChoice, nni.nn.Repeat))]
        assert not [m for m in modules if isinstance(m, nni.nn.ParametrizedModule)]
        assert torch.equal(run_module(subnet, images()), run_module(supernet, images(), architecture))
        if name != "Widths":  # a subnet of superkernels owns the whole of them
            assert sum(p.numel() for p in subnet.parameters()) == supernet.num_parameters(architecture)
        assert not {id(p) for p in subnet.parameters()} & {id(p) for p in supernet.parameters()}


def test_subnets_in_flight_do_not_disturb_each_other() -> None:
    space = space_of("Deep")
    supernet = Supernet(space, 0)
    first, second = draws(space, 2)
    assert first != second
    expected = run_module(supernet, images(), first)
    x, y = images(), images()
    for block in supernet:
        torch.manual_seed(7)
        y = block(y, second)
    torch.manual_seed(7)
    for block in supernet:
        x = block(x, first)
    assert torch.equal(x, expected)


def test_cells_with_two_predecessors_pass_two_values_on() -> None:
    space = space_of("Pairs")
    supernet = Supernet(space, 0)
    payload: Any = images()
    counts = []
    for block in list(supernet)[:-1]:
        payload = block(payload, draws(space, 1)[0])
        counts.append(len(payload) if isinstance(payload, tuple) else 1)
    assert counts == [1, 2, 2, 1]


def test_more_values_between_blocks_cut_cells_open() -> None:
    arguments = {"factory": False}
    coarse = Supernet(space_of("Pairs", arguments=arguments), 0)
    fine = Supernet(space_of("Pairs", arguments=arguments, values=4), 0)
    assert len(coarse) < len(fine)
    for architecture in draws(coarse.space):
        assert torch.equal(run_module(coarse, images(), architecture), run_module(fine, images(), architecture))


def test_a_cell_of_loose_ends_is_taken_as_one_of_all_nodes_as_in_nnis_supernets() -> None:
    space = space_of("Pairs", arguments={"merge_op": "loose_end", "factory": False})
    assert run_module(Supernet(space, 0), images(), draws(space, 1)[0]).shape == (6, 3)


def test_a_module_that_cannot_be_traced_is_one_block_and_the_rest_is_cut() -> None:
    names = [[layer.name for layer in Supernet(space_of("Moods"), 0).layers() if layer.block == i] for i in range(5)]
    assert names[1][0] == "parts.0.choice.conv1"
    assert names[2][0] == "parts.1.choice.conv1"


def test_a_module_that_depends_on_the_mode_still_does() -> None:
    space = space_of("Moods")
    subnet = Supernet(space, 0).extract(draws(space, 1)[0])
    subnet.train()
    assert not torch.equal(subnet(images()), subnet(images()))
    subnet.eval()
    assert torch.equal(subnet(images()), subnet(images()))


def test_a_model_that_cannot_be_traced_is_one_block_with_a_warning() -> None:
    with pytest.warns(NaspipeWarning, match="Branching is one block, so it cannot be pipelined"):
        space = NNISpace("nni_models:Branching")
    assert len(Supernet(space, 0)) == 1


def test_options_that_use_the_same_weights_are_warned_of_with_their_share() -> None:
    with pytest.warns(NaspipeWarning, match=r"options of Widths use the same weights: .* 47 % of their parameters"):
        NNISpace("nni_models:Widths")
    with pytest.warns(NaspipeWarning, match="options of Shared use the same weights"):
        space = NNISpace("nni_models:Shared")
    names = [layer.name for layer in Supernet(space, 0).layers() if layer.block == 1]
    assert names == ["first.b", "always_active"]


def test_a_constraint_is_a_validity_rule() -> None:
    space = space_of("Constrained")
    assert space.has_rule
    assert not space_of("Chain").has_rule
    assert all(architecture["step0"] != architecture["step1"] for architecture in draws(space, 30))
    with pytest.raises(ArchitectureError, match="the validity rule of NNISpace refuses"):
        space.architecture(dict.fromkeys(["step0", "step1", "step2"], "skip"))


@pytest.mark.parametrize(
    ("model", "arguments", "error", "message"),
    [
        ("nni_models:Ranges", {}, SpaceError, "'rate' must be a choice among listed values"),
        ("nni_models:Dangling", {}, SpaceError, "but Dangling has loose itself"),
        ("nni_models:TwoInputs", {}, SpaceError, r"must take one value, the batch's input, but takes \['x', 'y'\]"),
        ("nni_models:NoModel", {}, PluginError, "must be a subclass of NNI's ModelSpace"),
        ("nni_models:Chian", {}, PluginError, "nni_models has no 'Chian'. Did you mean 'Chain'"),
        ("no_such_module:Chain", {}, PluginError, "failed to import: .*No module named 'no_such_module'"),
        ("nni.nas.hub.pytorch:NasBench101", {}, SpaceError, "every decision of NasBench101 must belong to"),
        ("nni.nas.hub.pytorch:DARTS", {"num_cells": [3, 4], "width": 4}, SpaceError, "Give it a fixed depth"),
    ],
)
def test_what_does_not_fit_is_refused(
    model: str, arguments: dict[str, Any], error: type[InputError], message: str
) -> None:
    with pytest.raises(error, match=message):
        NNISpace(model, arguments)


def test_wrong_arguments_show_what_the_model_space_raised() -> None:
    with pytest.raises(SpaceError, match=r"Chain\(\*\*arguments\) failed:\n(?s:.)*keyword argument 'deep'"):
        NNISpace("nni_models:Chain", arguments={"deep": 3})


def test_nni_that_is_missing_is_said_with_its_cause_and_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nni.nas.nn.pytorch", None)
    with pytest.raises(PluginError, match=r"cannot be imported: .*nni.*Install them: pip install 'naspipe\[nni\]'"):
        NNISpace("nni_models:Chain")


def test_a_file_is_relative_to_the_configuration_and_kept_absolute(tmp_path: Path) -> None:
    text = (Path(__file__).parent / "nni_models.py").read_text()
    (tmp_path / "models.py").write_text(text)
    space = "space: {name: nni, model: 'models.py:Chain', arguments: {depth: 2}}"
    (tmp_path / "config.yaml").write_text(f"task: {{name: digits}}\n{space}")
    config = naspipe.load_config(tmp_path / "config.yaml")
    assert config.space.parameters["model"] == f"{tmp_path.resolve()}/models.py:Chain"
    with pytest.raises(ConfigError, match=r"models.py has no 'Chin'"):
        naspipe.load_config(tmp_path / "config.yaml", ["space.model=models.py:Chin"])


def states_around_the_import() -> tuple[list[str], list[Any], list[Any]]:
    """Return the modules of NNI before it is imported, and what results depend on, before and afterwards."""

    def state() -> list[Any]:
        return [
            random.getstate(), torch.get_rng_state().tolist(), str(numpy.random.get_state()), torch.get_num_threads(),
            str(torch.get_default_dtype()), torch.are_deterministic_algorithms_enabled(), torch.is_grad_enabled(),
            logging.root.handlers,
        ]  # fmt: skip

    names, before = [name for name in sys.modules if name.startswith("nni.")], state()
    load_nni()
    assert "nni.nas" in sys.modules
    return names, before, state()


def test_nni_is_imported_late_and_changes_no_state_that_results_depend_on(forks: None) -> None:
    names, before, after = call_in_fork(states_around_the_import)
    assert names == []
    assert before == after
    assert before[-1] == []


def config_of(model: str, task: str, **sections: Any) -> dict[str, Any]:
    return {
        "seed": 3,
        "space": {"name": "nni", "model": model},
        "task": {"name": task},
        "training": {"subnets": 24, "batch_size": 10, "delay": 2},
        "sampler": {"name": "uniform"},
        "search": {"strategy": {"name": "random"}, "budget": {"trials": 4}, "batch_size": 16},
        "retrain": {"epochs": 1, "batch_size": 16},
        **sections,
    }


@pytest.mark.parametrize("name", ["Chain", "Tied", "Deep", "Inputs", "Pairs", "Widths", "Shared", "Moods"])
def test_pipelines_give_the_bits_of_sequential_training(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NaspipeWarning)
        config = as_config(config_of(f"nni_models:{name}", "conftest:TinyTask"))
        checks = list(verify(config, ["csp"], [2, 3], ["in-process"]))
    assert [(check.executor, check.stages) for check in checks] == [("sequential", 1), ("csp", 2), ("csp", 3)]
    assert all(check.kept for check in checks), [check.difference or check.violations for check in checks]
    assert all(loss is not None for loss in checks[0].outcome.losses)


def test_a_chain_of_layer_choices_is_trained_searched_and_retrained(tmp_path: Path) -> None:
    config = config_of("nni_models:Chain", "conftest:TinyTask", executor={"name": "csp", "stages": 2})
    run = naspipe.run(config, tmp_path / "run")
    assert run.best_metrics()["test"].keys() >= {"accuracy", "loss"}
    again = naspipe.Run.open(tmp_path / "run").best()
    assert again(images()).shape == (6, 3)


class Colours(ClassificationTask):
    """Random images (3, 32, 32) of three colours."""

    def load(self, seed: int) -> Splits:
        generator = torch.Generator().manual_seed(seed)
        targets = torch.randint(3, (24,), generator=generator)
        inputs = torch.randn(24, 3, 32, 32, generator=generator)
        inputs += 2 * nn.functional.one_hot(targets, 3).view(-1, 3, 1, 1)
        return split_tensors(inputs, targets, seed, validation=0.25, test=0.25)


def shufflenet(**sections: Any) -> dict[str, Any]:
    config = config_of(SHUFFLENET, "test_nni_bridge:Colours", **sections)
    config["space"]["arguments"] = {"num_labels": 3}
    config["training"] = {"subnets": 4, "batch_size": 4, "delay": 2}
    config["search"]["budget"] = {"trials": 2}
    return config


def test_shufflenet_has_twenty_blocks_of_four_layers_and_computes_what_nni_computes(nni: Any) -> None:
    space = NNISpace(SHUFFLENET, {"num_labels": 3})
    supernet = Supernet(space, 2)
    strict = [sum(layer.strict for layer in row.values()) for row in supernet.layers_by_block]
    assert strict == [0, *[4] * 20, 0]
    assert space.size == 4**20
    theirs = NNISupernet(nni, space, supernet)
    architecture = draws(space, 1)[0]
    sample = space.to_sample(architecture)
    x = torch.randn(2, 3, 32, 32)
    output = run_module(supernet, x, architecture)
    # Not theirs.frozen: NNI 3.0 cannot freeze a convolution without bias (November 2026).
    assert torch.equal(theirs.resampled(sample, x), output)
    assert torch.equal(run_module(supernet.extract(architecture), x), output)


def test_shufflenet_is_trained_in_a_pipeline_bit_for_bit_searched_and_retrained(tmp_path: Path) -> None:
    run = naspipe.run(shufflenet(executor={"name": "csp", "stages": 3}), tmp_path / "run")
    assert run.best()(torch.randn(2, 3, 32, 32)).shape == (2, 3)
    sequential = naspipe.Run.create(shufflenet(), tmp_path / "sequential")
    sequential.train()
    assert sequential.digest == run.digest
