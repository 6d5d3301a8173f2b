"""The conformance kit: what is built in conforms, and each check finds the plug-in that breaks it."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import broken_plugins as broken
import hashed_plugins as hashed
import pytest
import yaml
from conftest import TINY, Command, TinySpace, TinyTask, ask_by
from test_image_tasks import arrays, write_idx, write_images

import naspipe
from naspipe import SearchSpace, registry
from naspipe.errors import InputError, PluginError
from naspipe.testing import (
    ExecutorCases,
    Noise,
    ObjectiveCases,
    SamplerCases,
    SearchSpaceCases,
    StrategyCases,
    Subject,
    TaskCases,
    check_plugin,
    checks_of,
)
from naspipe.testing.elsewhere import _answer

ROOT = Path(__file__).resolve().parent.parent
NOISE = Subject(Noise, {"shape": [broken.WIDTH]})

BUILT_IN: dict[tuple[str, str], dict[str, Any]] = {
    ("space", "nasbench201"): {"channels": 2},
    ("space", "vit"): {"width": 16, "blocks": 1},
    ("space", "transformer_lm"): {"width": 16, "blocks": 1, "vocabulary": 20},
    ("space", "transformer_seq2seq"): {
        "width": 16,
        "encoder_blocks": 1,
        "decoder_blocks": 1,
        "vocabulary": 12,
        "target_vocabulary": 9,
    },
    ("space", "resnet"): {"width": 4, "blocks": 3},
    ("space", "nni"): {"model": f"{ROOT}/examples/nni_space.py:SmallSpace", "arguments": {"width": 4}},
    ("sampler", "uniform"): {},
    ("sampler", "fair"): {},
    ("sampler", "spaced"): {"distance": 2},
    ("strategy", "random"): {},
    ("strategy", "grid"): {},
    ("strategy", "evolution"): {"population": 4},
    ("strategy", "regularized_evolution"): {"population": 6, "sample": 2},
    ("strategy", "local_search"): {},
    ("strategy", "optuna"): {"sampler": "RandomSampler"},
    ("executor", "sequential"): {},
    ("executor", "csp"): {},
    ("executor", "gpipe"): {"bulk": 3},
    ("executor", "one_f_one_b"): {},
    ("executor", "pipedream"): {},
    ("objective", "parameters"): {},
    ("objective", "flops"): {},
    ("objective", "activation_memory"): {},
    ("objective", "latency"): {},
    ("objective", "nasbench201"): {},
    ("task", "digits"): {},
    ("task", "fashion_mnist"): {"folder": "idx", "verify": False},
    ("task", "image_folder"): {"folder": "pictures", "size": 8, "channels": 1},
    ("task", "translation"): {"source": "one.txt", "target": "other.txt", "vocabulary": 60, "bleu_sentences": 2},
    ("task", "synthetic"): {"samples": 64, "shape": [1, 8, 8]},
    ("task", "language_model"): {"length": 16},
}

UNCHECKED = {("task", "torchvision")}
"""What needs a package that cannot be installed beside the tested torch; test_image_tasks.py has a stand-in for it."""

SPACES = {
    "synthetic": Subject("vit", {"width": 16, "blocks": 1}),
    "language_model": Subject("transformer_lm", {"width": 16, "blocks": 1, "vocabulary": 256}),
    "translation": Subject(
        "transformer_seq2seq", {"width": 16, "encoder_blocks": 1, "decoder_blocks": 1, "vocabulary": 60}
    ),
    "image_folder": Subject("vit", {"width": 16, "blocks": 1}),
    "fashion_mnist": Subject("resnet", {"width": 4, "blocks": 3}),
}
TASKS = {
    "transformer_lm": Subject(Noise, {"shape": [6], "tokens": 20}),
    "transformer_seq2seq": Subject("test_transformer_spaces:Translation"),
}
IMAGES = Subject(Noise, {"shape": [1, 8, 8]})

ONE_OBJECTIVE = {("strategy", "regularized_evolution"), ("strategy", "local_search")}


def test_every_built_in_plugin_is_checked_here() -> None:
    plugins = [plugin for kind in registry.REGISTRIES for plugin in kind.plugins()]
    known = {(plugin.kind, plugin.name) for plugin in plugins if plugin.origin.endswith(" in naspipe")}
    assert known == {*BUILT_IN, *UNCHECKED}


@pytest.mark.parametrize(("kind", "name"), BUILT_IN, ids=lambda word: word)
def test_what_is_built_in_conforms(
    kind: str, name: str, forked_processes: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NASPIPE_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    if kind == "task":
        write_data(tmp_path)
    subject = Subject(name, BUILT_IN[kind, name], TASKS.get(name, IMAGES), SPACES.get(name), only=kind)
    results = list(check_plugin(subject))
    others = {result.check.name: result.reason for result in results if result.verdict != "holds"}
    if (kind, name) in ONE_OBJECTIVE:
        assert others.pop("two_objectives_can_be_searched").startswith("start refuses 2 objectives, on Plain: ")
    if name == "latency":
        assert others.pop("it_is_a_function_of_the_candidate") == "the measure is timed, so it depends on the clock"
    if name == "language_model":
        assert "has many equal samples" in others.pop("splits_share_no_samples")
    assert others == {}
    assert len(results) == len(checks_of(kind))


def write_data(folder: Path) -> None:
    """Write the files that the tasks read."""
    (folder / "idx").mkdir()
    for name, array in arrays().items():
        write_idx(folder / "idx" / name, array)
    write_images(folder / "pictures", {"cats": 20, "dogs": 20})
    lines = [f"the {word} is number {index} of {index % 7}" for index, word in enumerate("abcdefghij" * 6)]
    (folder / "one.txt").write_text("\n".join(lines) + "\n")
    (folder / "other.txt").write_text("\n".join(line[::-1] for line in lines) + "\n")


@pytest.fixture
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer in this process; only some tests need another one."""
    ask_by(monkeypatch, lambda request: json.loads(json.dumps(_answer(request))))


class TestSpace(SearchSpaceCases):
    @pytest.fixture
    def plugin(self, no_processes: None) -> Subject:
        return Subject(TinySpace, {"width": 4}, task=TinyTask)


class TestSampler(SamplerCases):
    @pytest.fixture
    def plugin(self, no_processes: None) -> type:
        return broken.SoundSampler


class TestStrategy(StrategyCases):
    @pytest.fixture
    def plugin(self, no_processes: None) -> type:
        return broken.SoundStrategy


class TestExecutor(ExecutorCases):
    @pytest.fixture
    def plugin(self, no_processes: None) -> Subject:
        return Subject("csp", {"priority": "backward"})


class TestTask(TaskCases):
    @pytest.fixture
    def plugin(self, no_processes: None) -> str:
        return "conftest:TinyTask"


FAULTS: list[tuple[type, str, str]] = [
    (broken.Whimsical, "random_architectures_are_valid", "used the global generator of random"),
    (broken.NoJson, "json_goes_both_ways", "is no text of this space"),
    (broken.Taciturn, "texts_go_both_ways", "format must distinguish architectures, but gives"),
    (broken.Unreadable, "texts_go_both_ways", "parse must read what format returns, '"),
    (broken.Dangling, "drawings_name_their_nodes", "joins ['nowhere']"),
    (broken.Misfit, "a_batch_passes_forward_and_backward", "the space must fit the task Noise"),
    (broken.Endless, "a_batch_passes_forward_and_backward", "outputs must be finite, but slot 0"),
    (broken.Undeclared, "declared_layers_are_the_trained_ones", "it uses block 1, layer 'a' (_Undeclared)"),
    (broken.Boastful, "declared_layers_are_the_trained_ones", "neither run nor trained"),
    (broken.Idle, "declared_layers_are_the_trained_ones", "'module.forgotten' of block 3, layer 'always_active'"),
    (broken.Peeking, "other_layers_do_not_matter", "changes with them: output slot 0 has other bits"),
    (broken.Counting, "forward_writes_no_state", "'calls' of block 3.module (_Counting)"),
    (broken.Averaging, "forward_writes_no_state", "'mean' of block 3.module (_Averaging)"),
    (broken.Dicing, "running_again_gives_the_same", "forward must draw from keys of the seed alone"),
    (broken.Ticking, "running_again_gives_the_same", "output slot 0 has other bits"),
    (broken.Bent, "an_extracted_subnet_is_the_supernets_path", "must compute the supernet's bits"),
    (broken.Hoarding, "an_extracted_subnet_is_the_supernets_path", "must have the parameters of the layers"),
    (broken.Renormalised, "a_fresh_subnet_has_the_same_form", "'3.running_mean' is (6,) in the new one"),
    (broken.Unseeded, "building_again_gives_the_same", "used the global generator of random"),
    (broken.Smuggling, "boundaries_change_nothing", "with boundaries between its blocks, failed"),
    (broken.Formless, "architectures_of_a_variant_have_one_form", "variant() must return all that the spec depends on"),
    (broken.Looking, "the_meta_device_knows_every_form", "blocks must run on the meta device"),
    (broken.Aliased, "pipelines_give_the_bits_of_one_stage", "got a gradient from a subnet that does not name it"),
    (broken.Careless, "draws_are_architectures_of_the_space", "on Ruled, draw("),
    (broken.Entropic, "the_same_seed_draws_the_same", "two samplers with one seed must draw the same"),
    (broken.Enduring, "the_same_seed_draws_the_same", "started again must draw what it drew before"),
    (broken.Gregarious, "samplers_do_not_disturb_each_other", "must share no state with another one"),
    (broken.Global, "no_global_generator_is_used", "used the global generator of random"),
    (broken.Forgetful, "state_and_restore_go_on", "state() must hold all that later draws depend on"),
    (broken.Stingy, "one_objective_can_be_searched", "a list of generation_size = 2 architectures"),
    (broken.Lawless, "one_objective_can_be_searched", "on Ruled with 1 objective, ask()"),
    (broken.Narrow, "two_objectives_can_be_searched", "too many values to unpack"),
    (broken.Optimistic, "failed_trials_can_be_told", "'NoneType' object is not subscriptable"),
    (broken.EntropicStrategy, "the_same_seed_proposes_the_same", "proposal 0 is"),
    (broken.Stubborn, "the_last_start_counts", "a strategy that is started again must propose what a new one does"),
    (broken.GregariousStrategy, "searches_do_not_disturb_each_other", "must share no state with another one"),
    (broken.GlobalStrategy, "no_global_generator_is_used", "used the global generator of random"),
    (broken.Waiting, "plans_keep_the_contract", "cannot be planned"),
    (broken.Moody, "choices_follow_from_what_is_seen", "choose, with 2 ready actions, first returned"),
    (broken.Ageing, "planning_again_gives_the_same", "the same object must plan the same again"),
    (broken.Hasty, "no_clock_and_no_generator_is_used", "it used time.monotonic"),
    (broken.Short, "the_splits_have_samples", "a sample for each of 8 indices along dimension 0"),
    (broken.Shuffling, "loading_again_gives_the_same", "used the global generator of torch"),
    (broken.NoisyTask, "batches_depend_on_their_key_alone", "used the global generator of torch"),
    (broken.Lending, "batches_depend_on_their_key_alone", "return copies"),
    (broken.Leaking, "splits_share_no_samples", "of validation are in train too"),
    (broken.Averaged, "the_loss_is_a_sum_over_samples", "Use reduction='sum'"),
    (broken.Weightless, "the_weight_adds_up", "that of a batch is 1 and those of its halves are 1 and 1"),
    (broken.MeanMeasure, "measures_add_up", "must return sums over samples, but 'correct' is"),
    (broken.Silent, "metrics_cover_the_directions", "'f1' is 'missing'"),
    (broken.Recording, "its_methods_change_nothing", "'measured' has changed"),
]  # fmt: skip


def failures(cls: type) -> dict[str, str]:
    subject = Subject(cls, task=NOISE) if issubclass(cls, SearchSpace) else Subject(cls)
    return {result.check.name: result.reason for result in check_plugin(subject) if result.verdict == "fails"}


@pytest.mark.parametrize(("cls", "name", "reason"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS])
def test_a_fault_fails_its_check_and_no_other(no_processes: None, cls: type, name: str, reason: str) -> None:
    found = failures(cls)
    assert list(found) == [name], found
    assert reason in found[name]
    assert found[name].endswith((".", ")")) or "\n" in found[name] or "Error" in found[name]


@pytest.mark.parametrize(
    ("cls", "name", "reason"),
    [
        (broken.Hashed, "another_process_gives_the_same", "the decisions differ in another one"),
        (hashed.HashedSampler, "another_process_draws_the_same", "its draw(0) is"),
        (hashed.HashedStrategy, "another_process_proposes_the_same", "its proposal 0 is"),
        (hashed.HashedExecutor, "another_process_plans_the_same", "differs in another one"),
        (broken.HashedTask, "another_process_loads_the_same", "the train split differs in another one"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_what_depends_on_the_process_is_found(cls: type, name: str, reason: str) -> None:
    found = failures(cls)
    assert list(found) == [name], found
    assert reason in found[name]


def test_a_sound_plugin_has_no_fault(no_processes: None) -> None:
    assert failures(broken.Sound) == failures(broken.SoundTask) == {}


def test_a_check_that_cannot_be_told_is_skipped_and_says_why(no_processes: None) -> None:
    results = {result.check.name: result for result in check_plugin(Noise, {"shape": [2], "tokens": 2})}
    assert results["splits_share_no_samples"].verdict == "skipped"
    assert "has many equal samples" in results["splits_share_no_samples"].reason
    assert {result.verdict for result in results.values()} == {"holds", "skipped"}


def test_a_check_that_needs_another_one_says_nothing_while_that_fails(no_processes: None) -> None:
    results = {result.check.name: result for result in check_plugin(broken.Sound, task="digits")}
    assert results["a_batch_passes_forward_and_backward"].verdict == "fails"
    assert results["pipelines_give_the_bits_of_one_stage"].verdict == "skipped"
    assert results["json_goes_both_ways"].verdict == "holds"


def test_a_class_that_no_process_can_find_is_named() -> None:
    class Local(broken.SoundSampler):
        pass

    assert (
        "Local is not a class at the top of a file. Put it there." in failures(Local)["another_process_draws_the_same"]
    )


def test_a_failing_test_says_the_reason_and_a_case_without_its_fixture_says_so() -> None:
    cases: Any = SamplerCases()
    with pytest.raises(pytest.fail.Exception, match="on Ruled, draw"):
        cases.test_draws_are_architectures_of_the_space(Subject(broken.Careless))
    with pytest.raises(pytest.skip.Exception, match="says nothing while"):
        cases.test_no_global_generator_is_used(Subject(broken.Entropic))
    with pytest.raises(NotImplementedError, match="must have a fixture `plugin` that returns a sampler"):
        SamplerCases.plugin.__wrapped__(cases)  # type: ignore[attr-defined]


def test_every_check_says_in_one_line_what_it_shows() -> None:
    for kind in ("space", "sampler", "strategy", "executor", "task"):
        for check in checks_of(kind):
            assert check.shows.endswith(".")
            assert len(check.shows) <= 120


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Subject("nasbench201", {"chanels": 3}),), "chanels is unknown. It takes tied, channels,"),
        ((Subject("spaced"),), "distance must be given, but is missing"),
        (("no_such",), "there is no plug-in 'no_such'"),
        ((int,), "a plug-in must be a subclass of one of naspipe.SearchSpace"),
        ((Subject(TinySpace, task="uniform"),), "a task must be given, but UniformSampler is a sampler"),
    ],
)
def test_what_is_no_plugin_is_refused_before_anything_is_checked(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises((InputError, PluginError), match=message.replace("(", r"\(")):
        check_plugin(*arguments)


def test_the_kit_needs_pytest_only_where_test_classes_are_made() -> None:
    code = (
        "import sys, naspipe.testing\n"
        "results = list(naspipe.testing.check_plugin('fair'))\n"
        "assert {result.verdict for result in results} == {'holds'}, results\n"
        "sys.exit(bool({'pytest', 'torch'} & set(sys.modules)))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_plugins_of_the_documents_conform(no_processes: None, tmp_path: Path) -> None:
    root = Path(__file__).resolve().parent.parent
    text = (root / "README.md").read_text() + (root / "docs" / "plugins.md").read_text()
    for name in ("Sandwich", "Greedy", "Eldest"):
        (code,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if f"class {name}(" in block]
        path = tmp_path / f"{name}.py"
        path.write_text(re.sub(r"^@.*\n", "", code, flags=re.MULTILINE))
        assert [result.reason for result in check_plugin(f"{path}:{name}") if result.verdict != "holds"] == []


def test_a_sampler_that_no_space_suits_says_why(no_processes: None) -> None:
    results = list(check_plugin("spaced", {"distance": 50}))
    assert results[0].verdict == "fails"
    assert "start must accept some space, but refused all 4, the first for this reason: Plain: " in results[0].reason
    assert {result.blocked_by for result in results[1:]} == {"draws_are_architectures_of_the_space"}


# The command


def test_check_prints_what_holds_and_what_does_not(no_processes: None, command: Command, tmp_path: Path) -> None:
    code, text, errors = command(
        "plugins", "check", "conftest:TinySpace", "--set", "width=2", "--task", "conftest:TinyTask"
    )
    assert (code, errors) == (0, "")
    assert text.startswith(
        "space conftest:TinySpace:width=2, on batches of task TinyTask\nholds    Random architectures"
    )
    assert text.endswith("17 checks: 17 hold, 0 fail.\n")
    code, text, _ = command("plugins", "check", "broken_plugins:Averaged")
    assert code == 1
    assert "FAILS    The loss is a scalar with a gradient" in text
    assert "the_loss_is_a_sum_over_samples: Averaged.loss must be summed over samples" in text
    assert text.endswith("10 checks: 7 hold, 1 fails, 2 skipped.\n")
    code, text, _ = command("plugins", "check", "broken_plugins:Sound", "--inputs", "6")
    assert code == 0
    assert "on batches of task Noise" in text


def test_check_takes_task_and_space_from_a_configuration(no_processes: None, command: Command, tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump({**TINY, "search": {"strategy": {"name": "random"}}}))
    code, text, errors = command("plugins", "check", "--config", path)
    assert (code, errors) == (0, "")
    titles = [line.split(",")[0].split(":")[0] for line in text.splitlines() if ":" in line and "checks:" not in line]
    assert "sampler spaced" in titles
    assert text.count(" 0 fail") == 5
    code, text, _ = command("plugins", "check", "fair", "--config", path)
    assert code == 0
    assert text.startswith("sampler fair, with space TinySpace\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "a plug-in must be given, as in naspipe plugins check my_space.py:MySpace, or --config"),
        (("nosuch",), "there is no plug-in 'nosuch'"),
        (("gpipe:bulk=0",), "bulk must be greater than or equal to 1, but got 0"),
        (("gpipe", "--set", "bulk"), "must have the form path.to.key=value"),
        (("nasbench201", "--inputs", "a"), "must be the shape of one sample, as in 3,32,32, but is 'a'"),
        (("nasbench201", "--inputs", "3", "--task", "digits"), "from one place, but --task and --inputs were given"),
        (("nasbench201", "--task", "uniform"), "a task must be given, but UniformSampler is a sampler"),
        (("missing.py:Space",), "there is no"),
    ],
)
def test_check_refuses_bad_input_with_2(command: Command, arguments: tuple[str, ...], message: str) -> None:
    code, text, errors = command("plugins", "check", *arguments)
    assert code == 2
    assert message in errors
    assert text == ""


def test_an_option_without_effect_warns(no_processes: None, command: Command) -> None:
    code, _, errors = command("plugins", "check", "uniform", "--task", "digits")
    assert code == 0
    assert errors == "Warning: --task and --inputs have no effect on the checks of a sampler.\n"


class Worse(naspipe.Measure):
    """Breaks each promise that an objective makes."""

    direction = "best"  # type: ignore[assignment]  # on purpose
    count = 0

    def measure(self, subnet: naspipe.Subnet) -> float:
        type(self).count += 1
        subnet.module.train()
        return random.random() + type(self).count


def test_an_objective_that_keeps_no_promise_fails_every_check() -> None:
    found = {result.check.name: result for result in check_plugin(Worse)}
    verdicts = {name: result.verdict for name, result in found.items()}
    assert verdicts.pop("it_gives_a_finite_number") == "holds"
    assert set(verdicts.values()) == {"fails"}
    assert "must be 'maximize' or 'minimize', but is 'best'" in found["it_says_which_way_is_better"].reason
    assert "must leave the module as it is" in found["it_leaves_the_module_as_it_was"].reason
    assert "global generator of random" in found["it_is_a_function_of_the_candidate"].reason


class TestObjective(ObjectiveCases):
    @pytest.fixture
    def plugin(self) -> Subject:
        return Subject("flops", task=IMAGES, space=Subject("vit", {"width": 16, "blocks": 1}))
