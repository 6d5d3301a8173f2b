"""Search spaces without tensors: decisions, architectures, validity rules; imports no torch."""

from naspipe.space.architecture import Architecture as Architecture
from naspipe.space.decision import Decision as Decision
from naspipe.space.decision import Option as Option
from naspipe.space.graph import ArchitectureGraph as ArchitectureGraph
from naspipe.space.graph import chain_graph as chain_graph
from naspipe.space.space import SearchSpace as SearchSpace
from naspipe.space.space import format_option as format_option
