"""The checks of a search space: its architectures and their texts."""

from __future__ import annotations

import json

from naspipe.errors import InputError
from naspipe.keys import keyed_random
from naspipe.space import Architecture, SearchSpace
from naspipe.testing.check import CheckList, ConformanceError, require
from naspipe.testing.passes import as_in_training
from naspipe.testing.pure_spaces import some_architectures, telling_architectures
from naspipe.testing.subject import SEED, Subject
from naspipe.testing.watching import global_generators_untouched

DRAWS = 100
"""Number of random architectures."""

checks = CheckList(as_in_training)


@checks()
def random_architectures_are_valid(subject: Subject) -> None:
    """Random architectures are valid, and equal keys draw equal architectures."""
    space: SearchSpace = subject.make()
    with global_generators_untouched("drawing an architecture", torch_too=False):
        drawn = some_architectures(space, DRAWS)
    for index, architecture in enumerate(drawn):
        again = space.random_architecture(keyed_random(SEED, "conformance", index))
        require(again == architecture, f"one key must draw one architecture, but drew {architecture!r} and {again!r}.")
        require(
            space.architecture(dict(architecture)) == architecture,
            f"the space must accept its own architecture {architecture!r} unchanged.",
        )


@checks("random_architectures_are_valid")
def json_goes_both_ways(subject: Subject) -> None:
    """The JSON of an architecture is read back as the same architecture, and is canonical."""
    space: SearchSpace = subject.make()
    for architecture in some_architectures(space, DRAWS):
        text = architecture.to_json()
        found = space.parse(text)
        require(found == architecture, f"parse must read JSON too, but turned {text} into {found!r}.")
        turned = dict(reversed(list(json.loads(text).items())))
        canonical = space.architecture(Architecture(turned)).to_json()
        require(canonical == text, f"an architecture must have one JSON, but has {text} and {canonical}.")


@checks("random_architectures_are_valid")
def texts_go_both_ways(subject: Subject) -> None:
    """Different architectures have different texts; if the space overrides format, parse reads its texts."""
    space: SearchSpace = subject.make()
    owners: dict[str, Architecture] = {}
    for architecture in [*telling_architectures(space, DRAWS), *some_architectures(space, DRAWS)]:
        text = space.format(architecture)
        require(
            isinstance(text, str) and "\n" not in text, f"format must return a text of one line, but returned {text!r}."
        )
        other = owners.setdefault(text, architecture)
        require(
            other == architecture,
            f"format must distinguish architectures, but gives {text!r} for {dict(other)!r} and "
            f"{dict(architecture)!r}.",
        )
    if type(space).format is SearchSpace.format:
        return
    for text, architecture in owners.items():
        try:
            found = space.parse(text)
        except InputError as error:
            raise ConformanceError(f"parse must read what format returns, {text!r}, but: {error}") from error
        require(found == architecture, f"parse must read {text!r} as {dict(architecture)!r}, but made {dict(found)!r}.")


@checks("random_architectures_are_valid")
def drawings_name_their_nodes(subject: Subject) -> None:
    """The nodes of a drawing have different names, and its edges join them."""
    space: SearchSpace = subject.make()
    for architecture in telling_architectures(space, 20):
        graph = space.graph(architecture)
        names = [node[0] for node in graph.nodes]
        require(len(set(names)) == len(names), f"the nodes of a graph must have different names, but are {names!r}.")
        for edge in graph.edges:
            unknown = [name for name in edge[:2] if name not in names]
            require(not unknown, f"an edge must join nodes of its graph, but {edge!r} joins {unknown[:1]!r}.")
