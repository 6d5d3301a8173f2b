"""``naspipe rank-check``: the supernet's order beside the true one."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from naspipe.cli.output import say
from naspipe.records import RankedLine, RankRecord
from naspipe.search.ranking import describe_correlation


def show_ranking(record: RankRecord) -> None:
    """Print the architectures by the supernet's order, how well it agrees with the truth, and what to doubt."""
    truth = f"true {record.truth}" if record.seeds == 1 else f"mean true {record.truth}"
    columns = ("rank", f"supernet {record.score}", "untrained", truth, "+-", "architecture")
    table = Table(*columns, box=None, pad_edge=False)
    for line in record.architectures:
        table.add_row(*_cells(line))
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)
    say(f"Of {record.pool} random architectures scored; rank 1 is the supernet's best.")
    say(f"Kendall   {describe_correlation(record.kendall)}")
    say(f"Spearman  {describe_correlation(record.spearman)}")
    say("+1 is the order of the truth, 0 none, -1 the reverse; with bootstrap 95 % intervals.")
    for warning in record.warnings:
        say(f"Warning: {warning}")


def _cells(line: RankedLine) -> list[str]:
    untrained = "" if line.untrained is None else f"{line.untrained:.4f}"
    truth = "failed" if line.truth is None else f"{line.truth:.4f}"
    spread = "" if line.spread is None else f"{line.spread:.4f}"
    return [str(line.rank), f"{line.score:.4f}", untrained, truth, spread, line.text]
