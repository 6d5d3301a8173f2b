"""The HTML of a report: its style, and its few elements."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any

from naspipe.report.table import Table

STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2937; margin: 0; background: #f8fafc; }
main { max-width: 960px; margin: 0 auto; padding: 24px 16px 64px; counter-reset: figure table; }
h1 { font-size: 1.6rem; margin: 0 0 4px; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 0 0 8px; }
section { background: #fff; border: 1px solid #e2e8f0; border-radius: 10px; padding: 16px 18px;
          margin-top: 18px; }
p { margin: 0 0 8px; overflow-wrap: anywhere; } p.note { color: #475569; }
p.problem { color: #9f1239; }
figure { margin: 16px 0 0; } figure.narrow { max-width: 620px; margin-inline: auto; }
figcaption, p.caption { color: #475569; font-size: .9rem; }
figcaption { border-bottom: 1px solid #f1f5f9; padding: 2px 0 10px; }
figcaption::before { counter-increment: figure; content: "Figure " counter(figure) ". ";
                     font-weight: 600; }
p.caption { margin: 0 0 4px; }
p.caption::before { counter-increment: table; content: "Table " counter(table) ". "; font-weight: 600; }
.scroll { overflow-x: auto; margin: 12px 0 8px; }
table { border-collapse: collapse; }
th, td { text-align: left; padding: 4px 18px 4px 0; vertical-align: top; border-top: 1px solid #f1f5f9;
         font-variant-numeric: tabular-nums; }
th { font-weight: 600; color: #475569; } th.right, td.right { text-align: right; }
table:has(td.code) { min-width: 860px; }
code, pre, td.code { font: 13px/1.45 ui-monospace, monospace; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; margin: 8px 0 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 12px 20px;
           margin: 12px 0 8px; }
.figures b { display: block; font-size: 1.5rem; line-height: 1.3; }
.figures span { color: #475569; font-size: .9rem; }
summary { cursor: pointer; padding: 4px 0; }
@media (max-width: 600px) { main { padding: 16px 8px 40px; } section { padding: 14px 10px; } }
@media print { body { background: #fff; } section { border: 0; padding: 0; }
  figure, tr { break-inside: avoid; } .modebar { display: none; } }
"""

_PLOT_OPTIONS = {
    "responsive": True,
    "displaylogo": False,
    # Only the button that saves the figure: the others cover it on a telephone, or need a server.
    "modeBarButtons": [["toImage"]],
}


def section(title: str, *elements: str) -> str:
    """Return a section; empty elements are left out."""
    body = "\n".join(filter(None, elements))
    return f"<section><h2>{html.escape(title)}</h2>\n{body}\n</section>\n"


def plot(figure: Any, name: str, caption: str, narrow: bool = False) -> str:
    """Return a plotly figure with its caption; ``name`` is its id, and its file if saved."""
    # A metric's name may have any character; an id within a script may not.
    name = re.sub(r"\W+", "-", name)
    options = {**_PLOT_OPTIONS, "toImageButtonOptions": {"format": "svg", "filename": name}}
    text = figure.to_html(full_html=False, include_plotlyjs=False, div_id=name, config=options)
    kind = ' class="narrow"' if narrow else ""
    return f"<figure{kind}>{text}<figcaption>{html.escape(caption)}</figcaption></figure>"


def note(text: str) -> str:
    """Return a paragraph of explanation."""
    return f'<p class="note">{html.escape(text)}</p>'


def problem(text: str) -> str:
    """Return a paragraph on something that is wrong; nothing for an empty text."""
    return f'<p class="problem">{html.escape(text)}</p>' if text else ""


def table(content: Table) -> str:
    """Return a table with its caption."""
    classes = [
        " ".join(filter(None, ["right" if column.right else "", "code" if column.wrap == "anywhere" else ""]))
        for column in content.columns
    ]
    named = [f' class="{name}"' if name else "" for name in classes]

    def line(cells: Sequence[str], tag: str) -> str:
        texts = zip(named, cells, strict=True)
        return f"<tr>{''.join(f'<{tag}{name}>{html.escape(cell)}</{tag}>' for name, cell in texts)}</tr>"

    titles = [column.title for column in content.columns]
    caption = f'<p class="caption">{html.escape(content.caption)}</p>' if content.caption else ""
    head = f"<thead>{line(titles, 'th')}</thead>" if any(titles) else ""
    body = "".join(line(cells, "td") for cells in content.texts("±"))
    return f'<div class="scroll">{caption}<table>{head}<tbody>{body}</tbody></table></div>'


def standalone_page(title: str, body: Iterable[str], style: str = "") -> str:
    """Return a self-contained page, with its style and plotly.js.

    Args:
        title: Text of the title.
        body: HTML of the sections.
        style: CSS besides the report's.
    """
    from plotly.offline import get_plotlyjs

    title = html.escape(title)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{STYLE}{style}</style>\n"
        f"<script>{get_plotlyjs()}</script></head>\n<body><main>\n"
        f"<h1>{title}</h1>\n{''.join(body)}</main></body></html>\n"
    )
