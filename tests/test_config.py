import copy
import os
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import naspipe
from naspipe.config.source import dump_yaml, read_text
from naspipe.errors import ConfigError, NaspipeWarning
from naspipe.registry import tasks
from naspipe.training.context import as_config

GOOD = """\
space: {name: conftest:TinySpace}
task: {name: conftest:TinyTask}
training:
  subnets: 30
  optimizer: {name: AdamW, lr: 1e-3, betas: [0.9, 0.95]}
search:
  budget: {trials: 16}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def problems(tmp_path: Path, text: str, overrides: tuple[str, ...] = ()) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        naspipe.load_config(write(tmp_path, text), overrides)
    return [str(problem).removeprefix(f"{tmp_path}/") for problem in caught.value.problems]


def test_defaults_are_filled_in_and_resolving_again_changes_nothing(tmp_path: Path) -> None:
    config = naspipe.load_config(write(tmp_path, GOOD))
    assert config.training.optimizer.parameters["lr"] == 1e-3
    assert config.training.optimizer.parameters["betas"] == [0.9, 0.95]
    assert config.space.parameters == {"width": 4, "blocks": 3}
    assert config.search.strategy.parameters["population"] == 16
    again = naspipe.load_config(write(tmp_path, config.to_yaml()))
    assert again == config


def test_everything_wrong_is_reported_at_once_with_file_line_and_path(tmp_path: Path) -> None:
    text = """\
seed: 1
seed: 2
space: {name: conftest:TinySpace, widht: 3}
task: {name: nothing}
training:
  subnets: -3
  optimizer: {name: SGD, lr: fast, moment: 1}
  delai: 3
search:
  strategy: {name: random, population: 8}
  budget: {trials: 0}
"""
    found = problems(tmp_path, text)
    assert found == [
        f"config.yaml:2: seed: duplicate key: it is given at {tmp_path}/config.yaml:1 already. Keep one of the two.",
        "config.yaml:3: space.widht: unknown key. Did you mean 'width'? Allowed here: width, blocks.",
        f"config.yaml:4: task.name: there is no task 'nothing'. Known: {', '.join(tasks.names())}. "
        "Or give a reference: file.py:Class or package.module:Class.",
        "config.yaml:6: training.subnets: must be greater than or equal to 1, but got -3.",
        "config.yaml:7: training.optimizer.lr: must be a valid number, but got 'fast'.",
        "config.yaml:7: training.optimizer.moment: unknown key. Did you mean 'momentum'? Allowed here: "
        "lr, momentum, dampening, weight_decay, nesterov, maximize, foreach.",
        "config.yaml:8: training.delai: unknown key. Did you mean 'delay'? Allowed here: batch_size, "
        "optimizer, schedule, subnets, microbatches, delay, freeze_always_active, clip_norm, precision, "
        "on_nonfinite, threads, device.",
        "config.yaml:10: search.strategy.population: unknown key. It is a parameter of strategy "
        "'evolution', but the strategy here is 'random'. Allowed here: batch.",
        "config.yaml:11: search.budget.trials: must be greater than or equal to 1, but got 0.",
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.optimizer.lr=fast", "training.optimizer.lr: must be a valid number, but got 'fast'"),
        ("training.optimizer.lr=-1", "training.optimizer: torch.optim.AdamW refuses its arguments"),
        ("training.optimizer={name: LBFGS}", "'LBFGS' is not supported: it needs the loss again"),
        ("training.optimizer={name: SparseAdam}", "'SparseAdam' is not supported: it takes sparse gradients"),
        ("training.optimizer={name: sgd}", "no optimizer torch.optim.sgd. Did you mean 'SGD'?"),
        ("training.optimizer.lr=.nan", "training.optimizer.lr: must be a finite number, but got nan"),
        ("training.optimizer.betas=[.inf, 1]", "optimizer.betas[0]: must be a finite number, but got inf"),
        ("training.clip_norm=-.inf", "training.clip_norm: must be a finite number, but got -inf"),
        ("training.optimizer={name: SGD, fused: true}", "training.optimizer.fused: unknown key"),
        ("search.budget.trials=-4", "must be greater than or equal to 1, but got -4"),
        ("search.objectives=[flops, flops]", "objectives must differ"),
        ("search.constraints=[accuracy>0.5]", "'accuracy' is known only once a subnet has been evaluated"),
        ("search.constraints=[flop<1e6]", "but is on 'flop'. Did you mean 'flops'?"),
        ("search.constraints=[flops<many]", "a condition must compare a metric with a number by"),
        ("search.constraints=[flops]", "as in parameters<1e6, but got 'flops'"),
        ("search.workers=0", "search.workers: must be greater than or equal to 1, but got 0"),
        ("search.strategy={name: evolution, population: 1}", "greater than or equal to 2, but got 1"),
        (
            "search.strategy={name: regularized_evolution, population: 4, sample: 5}",
            "sample must be at most the population, 4, but is 5",
        ),
        ("search.objectives=[acuracy]", r"no objective 'acuracy'. Did you mean 'accuracy'?"),
        ("search.objectives=[loss, loss]", "objectives must differ"),
        ("search.objectives=[]", "at least 1 item"),
        ("sampler={name: spaced, distance: 3}", "at most the number of a decision's options less two, but is 3"),
        ("sampler={name: spaced}", "sampler.distance: must be given, but is missing"),
        ("sampler={name: spaced, distance: 1.5}", "sampler.distance: must be a valid integer"),
        ("executor.options.x=1", "executor.options.x: unknown key"),
        ("training.clip_norm=0", "must be greater than 0, but got 0"),
        ("training.schedule.name=step", "must be 'constant', 'linear' or 'cosine', but got 'step'"),
        ("space.name=conftest:TinyTask", "must be a subclass of naspipe.SearchSpace"),
        ("space=3", "space: must be a mapping such as {name: nasbench201}, but got 3"),
        ("retrain.optimizer=x", "retrain.optimizer: must be a mapping such as {name: SGD, lr: 0.05}, but"),
        ("training=[1]", "training: must be a mapping, but got [1]"),
        ("search.objectives=accuracy", "search.objectives: must be a list, but got 'accuracy'"),
        ("space.name=Conftest:TinySpace", "No module named 'Conftest'"),
        ("space.name=mine.py", "named by file and class, but got 'mine.py'. Write mine.py:Class"),
        ("sampler.name=Uniform", "no sampler 'Uniform'. Did you mean 'uniform'?"),
        ("task.name=[1]", "task.name: must be a valid string"),
        ("seed.deep=1", "seed: has no keys to set: it is 0"),
        ("nonsense", "must have the form path.to.key=value"),
    ],
)  # fmt: skip
def test_bad_values_are_refused(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        naspipe.load_config(write(tmp_path, "seed: 0\n" + GOOD), [override])


def test_overrides_go_the_same_road_as_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    config = naspipe.load_config(path, ["training.optimizer.lr=5e-2", "search.strategy={name: random}", "seed=7"])
    assert config.training.optimizer.parameters["lr"] == 0.05
    assert config.search.strategy.parameters == {"batch": 16}
    assert config.seed == 7
    found = problems(tmp_path, GOOD, ("training.optimizer.lr=fast",))
    assert found == ["--set training.optimizer.lr=fast: training.optimizer.lr: must be a valid number, but got 'fast'."]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.subnets=", "training.subnets: must be a valid integer, but got None."),
        ("trainin.subnets=5", "trainin: unknown key. Did you mean 'training'"),
        ("space.name=", "space.name: must be a valid string, but got None."),
    ],
)
def test_an_override_is_blamed_for_what_it_set(tmp_path: Path, override: str, message: str) -> None:
    (found,) = problems(tmp_path, GOOD, (override,))
    assert found.startswith(f"--set {override}: {message}")


def test_a_refusal_by_a_class_names_the_overrides_of_its_section(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, GOOD, ("training.optimizer.lr=-1", "seed=3"))
    assert found.startswith("config.yaml:5, --set training.optimizer.lr=-1: training.optimizer: torch.optim")
    (found,) = problems(tmp_path, GOOD + "sampler: {name: spaced, distance: 1}\n", ("sampler.distance=4",))
    assert found.startswith("config.yaml:8, --set sampler.distance=4: sampler: sampler.distance must be at")


@pytest.mark.parametrize(
    ("section", "override"),
    [
        ("sampler: {name: spaced, distance: 1}\n", "sampler.name=uniform"),
        ("", "training.optimizer.name=SGD"),
    ],
)
def test_parameters_of_the_plugin_before_an_override_show_how_to_change_it(
    tmp_path: Path, section: str, override: str
) -> None:
    (found,) = problems(tmp_path, GOOD + section, (override,))
    path = override.partition(".name=")[0]
    assert f"To change the plug-in, replace the whole section: --set '{path}={{name: ...}}'. Allowed" in found


def test_an_unknown_default_objective_says_that_it_is_the_default(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(
        "from conftest import TinyTask\n"
        "class Other(TinyTask):\n"
        "    @property\n"
        "    def directions(self):\n        return {'f1': 'maximize'}\n"
    )
    (found,) = problems(tmp_path, GOOD.replace("conftest:TinyTask", "other.py:Other"))
    assert "there is no objective 'accuracy'. There are the metrics of the task, f1, and the measures " in found
    assert found.endswith("'accuracy' is the default: set search.objectives to one or more of these.")


def test_a_reference_is_relative_to_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text("from conftest import TinySpace as Mine\n")
    path = write(tmp_path, GOOD.replace("conftest:TinySpace", "mine.py:Mine"))
    monkeypatch.chdir(os.sep)
    config = naspipe.load_config(path)
    assert config.space.name == f"{tmp_path}/mine.py:Mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "config.yaml:1: is not YAML|config.yaml:2: is not YAML"),
        ("- 1\n", "must be a mapping, but is"),
        ("? [1]\n: 2\n", "a key must be a word"),
        ("seed: !!int x\n" + GOOD, "config.yaml:1: seed: is not a plain value"),
        ("", "space: must be given, but is missing"),
    ],
)
def test_malformed_yaml_is_an_error_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        naspipe.load_config(write(tmp_path, text))


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        naspipe.load_config(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xe9")
    with pytest.raises(ConfigError, match="must be UTF-8"):
        naspipe.load_config(tmp_path / "latin.yaml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3), ("5E2", 500.0), (".5", 0.5), ("-1.", -1.0), ("0x10", 16), ("0o17", 15), ("017", 17),
        ("no", "no"), ("on", "on"), ("true", True), ("1:30", "1:30"), ("~", None), ("", None),
        ("2024-01-01", "2024-01-01"), ("1_000", "1_000"), (".inf", float("inf")), ("e3", "e3"),
    ],
)  # fmt: skip
def test_scalars_mean_what_they_look_like(text: str, value: object) -> None:
    assert read_text(f"x: {text}\n", "t", Path()).data == {"x": value}


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["C"]))
    | st.sampled_from(["1e-3", "no", "1:30", "0o7", "null", "=", "<<", "1_0", "2024-01-01"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text("abc_", min_size=1), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.dictionaries(st.text("abc_", min_size=1), trees, max_size=4))
def test_what_is_written_is_read_back_equal(data: dict[str, Any]) -> None:
    source = read_text(dump_yaml(data), "t", Path())
    assert source.data == data
    assert not source.problems


def test_options_of_another_executor_are_dropped_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = GOOD + "executor: {name: other, options: {bulk: 4}}\n"
    with pytest.warns(NaspipeWarning, match="executor.options of 'other' are dropped"):
        config = naspipe.load_config(write(tmp_path, text), ["executor.name=sequential"])
    assert config.executor.options == {}


def test_options_that_are_given_with_another_executor_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They must not be taken for those of the executor before, which are dropped."""
    text = GOOD + "executor: {name: csp, options: {priority: chain}}\n"
    sections = ["executor={name: gpipe, options: {bulk: 4}}", "training.delay=null"]
    assert naspipe.load_config(write(tmp_path, text), sections).executor.options == {"bulk": 4}


def test_a_space_that_nothing_satisfies_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "ruled.py").write_text(
        "from conftest import TinySpace\n"
        "class Ruled(TinySpace):\n    def is_valid(self, architecture):\n        return False\n"
    )
    text = GOOD.replace("conftest:TinySpace", "ruled.py:Ruled")
    with pytest.raises(ConfigError, match=r"config.yaml:1: space: the validity rule of Ruled must admit"):
        naspipe.load_config(write(tmp_path, text))


def test_a_plugin_that_refuses_its_parameters_is_a_problem_of_its_section(tmp_path: Path) -> None:
    (tmp_path / "strict.py").write_text(
        "from conftest import TinySpace\n"
        "class Strict(TinySpace):\n"
        "    def __init__(self, width: int = 3):\n"
        "        raise ValueError('width must be even')\n"
    )
    text = GOOD.replace("conftest:TinySpace", "strict.py:Strict")
    with pytest.raises(ConfigError, match="space: .*refuses its parameters: ValueError: width must be even$"):
        naspipe.load_config(write(tmp_path, text))


def fault_in(tmp_path: Path, kind: str, body: str) -> str:
    """Return what is reported of a configuration with a plug-in of this body."""
    base = {
        "space": "TinySpace",
        "task": "TinyTask",
        "strategy": "RandomStrategy",
        "sampler": "UniformSampler",
    }
    (tmp_path / "faulty.py").write_text(
        "from conftest import TinySpace, TinyTask\n"
        "from naspipe import Decision\n"
        "from naspipe_strategies.random_search import RandomStrategy\n"
        "from naspipe_strategies.uniform import UniformSampler\n"
        f"class Faulty({base[kind]}):\n    {body}\n"
    )
    path = "search.strategy" if kind == "strategy" else kind
    (found,) = problems(tmp_path, GOOD, (f"{path}={{name: '{tmp_path}/faulty.py:Faulty'}}",))
    return found


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        ("space", "def __init__(self): {}['x']",
         "refuses its parameters: KeyError: 'x'\nTraceback.*faulty.py"),
        ("space", "def __init__(self): pass", r"Faulty.__init__ must call super\(\).__init__\(decisions\)"),
        ("space", "def __init__(self): super(TinySpace, self).__init__(['a'])",
         "Faulty.__init__ must pass decisions to .* as in .* but passed 'a' of type str"),
        ("space", "def __init__(self): super(TinySpace, self).__init__(None)",
         "Faulty.__init__ must pass a list of decisions to .* but passed None"),
        ("space", "def __init__(self): super(TinySpace, self).__init__([Decision('a', {1, 2})])",
         "the options of decision 'a' must be a list or a tuple, but got {1, 2} of type set"),
        ("space", "def is_valid(self, a): raise RuntimeError('my own fault')",
         "Faulty.is_valid failed:\nTraceback.*faulty.py.*my own fault"),
        ("space", "def is_valid(self, a): pass",
         "Faulty.is_valid must return True or False, but returned None"),
        ("task", "directions = 3",
         "Faulty.directions must be a mapping from metrics .*, but is 3 of type int"),
        ("sampler", "def start(self, space, seed): raise RuntimeError('my own fault')",
         r"Faulty: start\(\) failed:\nTraceback.*faulty.py.*my own fault"),
        ("strategy", "def start(self, space, directions, seed): raise RuntimeError('my own fault')",
         r"Faulty: start\(\) failed:\nTraceback.*faulty.py.*my own fault"),
        ("strategy", "generation_size = 0", "Faulty: generation_size must be a whole number .* but is 0"),
        ("strategy", "generation_size = property(lambda self: self.nothing)",
         "Faulty: generation_size failed:\nTraceback.*faulty.py"),
    ],
)  # fmt: skip
def test_a_fault_of_a_plugin_is_bad_input_with_its_own_frames(
    tmp_path: Path, kind: str, body: str, message: str
) -> None:
    found = fault_in(tmp_path, kind, body)
    assert re.search(message, found, re.DOTALL), found
    assert "toolkit/naspipe" not in found


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("*args", "must name its parameters"),
        ("width: 'Nonsense' = 1", "must be importable where it is defined"),
        ("name: str = 'x'", "must not have a parameter called 'name'"),
    ],
)
def test_a_signature_that_no_configuration_fits_is_refused(tmp_path: Path, signature: str, message: str) -> None:
    (tmp_path / "odd.py").write_text(
        "from conftest import TinySpace\n"
        f"class Odd(TinySpace):\n    def __init__(self, {signature}):\n        super().__init__()\n"
    )
    text = GOOD.replace("conftest:TinySpace", "odd.py:Odd")
    with pytest.raises(ConfigError, match=message):
        naspipe.load_config(write(tmp_path, text))


def test_a_parameter_may_have_a_name_that_pydantic_uses(tmp_path: Path) -> None:
    (tmp_path / "named.py").write_text(
        "from conftest import TinySpace\n"
        "class Named(TinySpace):\n"
        "    def __init__(self, copy: bool = True, json: int = 1, model_config: str = 'a'):\n"
        "        super().__init__()\n"
    )
    config = naspipe.load_config(write(tmp_path, GOOD.replace("conftest:TinySpace", "named.py:Named")))
    assert config.space.parameters == {"copy": True, "json": 1, "model_config": "a"}


def test_smaller_decisions_are_capped_with_a_warning(tmp_path: Path) -> None:
    (tmp_path / "mixed.py").write_text(
        "from conftest import TinySpace\nfrom naspipe import Decision, SearchSpace\n"
        "class Mixed(TinySpace):\n"
        "    def __init__(self):\n"
        "        SearchSpace.__init__(self, [Decision('a', range(5)), Decision('b', range(3))])\n"
    )
    text = GOOD.replace("conftest:TinySpace", "mixed.py:Mixed") + "sampler: {name: spaced, distance: 3}\n"
    with pytest.warns(NaspipeWarning, match=r"capped for 1 of 2 decisions .* 'b' first"):
        naspipe.load_config(write(tmp_path, text))


def test_a_configuration_may_be_a_mapping(tiny: dict[str, Any]) -> None:
    before = copy.deepcopy(tiny)
    config = as_config(tiny)
    assert config.training.subnets == 30
    assert tiny == before
    assert as_config(config) == config
    for wrong in (None, [1], 3):
        with pytest.raises(ConfigError, match="must be a path, a mapping or a naspipe.RunConfig, but got"):
            naspipe.run(wrong)
    tiny["seed"] = object()
    with pytest.raises(ConfigError, match="must hold only numbers, texts"):
        as_config(tiny)


def test_no_warning_for_what_is_right(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        naspipe.load_config(write(tmp_path, GOOD))
