import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import TinySpace, TinyTask

import naspipe
from naspipe import registry
from naspipe.errors import PluginError
from naspipe.registry import Plugin, Registry


@pytest.fixture
def spaces(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """The registry of spaces, without what a test adds to it."""
    monkeypatch.setattr(registry.spaces, "_decorated", {})
    return registry.spaces


def test_the_three_doors_lead_to_the_same_registry(spaces: Registry, tmp_path: Path) -> None:
    naspipe.register_space("tiny")(TinySpace)
    assert spaces.get("tiny") is TinySpace
    assert spaces.get("nasbench201").__name__ == "NASBench201"
    assert spaces.get("conftest:TinySpace") is TinySpace
    file = tmp_path / "my_space.py"
    file.write_text("from conftest import TinySpace\nclass Mine(TinySpace):\n    pass\n")
    mine = spaces.get(f"{file}:Mine")
    assert issubclass(mine, TinySpace)
    assert spaces.get(f"{file}:Mine") is mine


def test_a_duplicate_name_names_both_origins(spaces: Registry) -> None:
    with pytest.raises(PluginError, match=r"named 'nasbench201': one from naspipe_spaces.*conftest.py"):
        naspipe.register_space("nasbench201")(TinySpace)


def test_the_same_definition_may_run_again(spaces: Registry) -> None:
    naspipe.register_space("tiny")(TinySpace)
    naspipe.register_space("tiny")(TinySpace)
    assert spaces.get("tiny") is TinySpace


def test_two_distributions_with_one_name_disturb_no_other(spaces: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        Plugin("space", name, origin, lambda: TinySpace)
        for name, origin in (("a", "x:A in one"), ("a", "y:A in two"), ("b", "x:B in one"))
    ]
    monkeypatch.setattr(registry, "_entry_points", lambda kind, group: found)
    assert spaces.get("b") is TinySpace
    with pytest.raises(PluginError, match="one from x:A in one, one from y:A in two"):
        spaces.get("a")


def test_an_unknown_name_lists_the_nearest(spaces: Registry) -> None:
    with pytest.raises(PluginError, match=r"no space 'nasbench'. Did you mean 'nasbench201'\?"):
        spaces.get("nasbench")


def test_a_plugin_that_fails_to_import_shows_its_own_traceback(spaces: Registry, tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def f():\n    raise RuntimeError('my own fault')\nf()\n")
    with pytest.raises(PluginError, match=r"(?s)broken.py:A' failed to import.*line 2.*my own fault"):
        spaces.get(f"{broken}:A")
    assert not [name for name in sys.modules if name.startswith("naspipe_file_broken")]
    syntax = tmp_path / "syntax.py"
    syntax.write_text("class A(\n")
    with pytest.raises(PluginError, match=r"(?s)failed to import.*syntax.py.*SyntaxError"):
        spaces.get(f"{syntax}:A")


def test_a_missing_file_or_class_is_named(spaces: Registry, tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"there is no .*nothing.py"):
        spaces.get(f"{tmp_path}/nothing.py:A")
    with pytest.raises(PluginError, match=r"conftest has no 'TinySpac'. Did you mean 'TinySpace'"):
        spaces.get("conftest:TinySpac")
    with pytest.raises(PluginError, match=r"(?s)ModuleNotFoundError.*no_such_module"):
        spaces.get("no_such_module:A")


def test_what_an_import_shows_begins_in_the_plugins_own_file(spaces: Registry, tmp_path: Path) -> None:
    broken = tmp_path / "broken2.py"
    broken.write_text("def f():\n    {}['mine']\nf()\n")
    with pytest.raises(PluginError) as caught:
        spaces.get(f"{broken}:A")
    lines = str(caught.value).splitlines()
    assert lines[1:3] == ["Traceback (most recent call last):", f'  File "{broken}", line 3, in <module>']
    broken.write_text("import sys\nsys.exit(1)\n")
    with pytest.raises(PluginError, match=r"(?s)failed to import:.*line 2.*SystemExit: 1"):
        spaces.get(f"{broken}:A")
    broken.write_text("\nimport no_such_module\n")
    with pytest.raises(PluginError) as caught:
        spaces.get(f"{broken}:A")
    assert str(caught.value) == (
        f"space '{broken}:A' failed to import: {broken}, line 2: ModuleNotFoundError: No module named 'no_such_module'"
    )


def test_a_missing_class_lists_those_of_the_kind_that_is_asked_for(spaces: Registry, tmp_path: Path) -> None:
    file = tmp_path / "several.py"
    file.write_text(
        "from conftest import TinyTask\nfrom naspipe import SearchSpace\n"
        "class One(SearchSpace):\n    def blocks(self):\n        return []\nclass Other:\n    pass\n"
    )
    with pytest.raises(PluginError, match=r"has no 'Nope'. It has One\.$"):
        spaces.get(f"{file}:Nope")
    with pytest.raises(PluginError, match=r"has no 'Nope'. It has TinyTask\.$"):
        registry.tasks.get(f"{file}:Nope")
    with pytest.raises(PluginError, match="It has TinyTask, SearchSpace, One, Other"):
        registry.samplers.get(f"{file}:Nope")


def test_a_file_may_import_its_neighbours_and_never_gets_a_stranger_of_the_same_name(
    spaces: Registry, tmp_path: Path
) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "neighbour_of_test.py").write_text("from conftest import TinySpace\n")
        text = "from neighbour_of_test import TinySpace\nclass Mine(TinySpace):\n    pass\n"
        (tmp_path / folder / "mine.py").write_text(text)
    path = list(sys.path)
    try:
        assert issubclass(spaces.get(f"{tmp_path}/one/mine.py:Mine"), TinySpace)
        with pytest.raises(PluginError, match="mine.py imports 'neighbour_of_test', .* from .*/one/.* Rename"):
            spaces.get(f"{tmp_path}/two/mine.py:Mine")
    finally:
        sys.modules.pop("neighbour_of_test", None)
    assert sys.path == path


def test_a_class_of_the_wrong_kind_is_refused_at_every_door(spaces: Registry) -> None:
    message = r"must be a subclass of naspipe.SearchSpace, but is the class TinyTask \(derived from"
    with pytest.raises(PluginError, match=message):
        naspipe.register_space("task")(TinyTask)
    with pytest.raises(PluginError, match=message):
        spaces.get("conftest:TinyTask")


def test_an_abstract_class_names_what_it_lacks(spaces: Registry) -> None:
    with pytest.raises(PluginError, match="must implement blocks"):
        naspipe.register_space("abstract")(naspipe.SearchSpace)


def test_every_builtin_is_an_entry_point_of_the_distribution() -> None:
    names = {(r.kind, plugin.name) for r in registry.REGISTRIES for plugin in r.plugins()}
    assert names >= {
        ("space", "nasbench201"),
        ("sampler", "uniform"),
        ("sampler", "spaced"),
        ("strategy", "random"),
        ("strategy", "evolution"),
        ("executor", "sequential"),
        ("task", "digits"),
    }
    for found in registry.REGISTRIES:
        for plugin in found.plugins():
            assert issubclass(found.get(plugin.name), found.base)


def test_entry_points_of_no_known_distribution_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = SimpleNamespace(name="odd", value="m:C", dist=None, load=lambda: TinySpace)
    monkeypatch.setattr(registry.importlib.metadata, "entry_points", lambda group: [entry])
    monkeypatch.setattr(registry, "_scan", registry._scan.__wrapped__)  # without its cache
    assert registry.spaces.find("odd").origin == "m:C in unknown distribution"
