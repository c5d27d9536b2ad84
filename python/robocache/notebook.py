"""Writes HTML for notebooks: titles, tables and a progress bar. All texts are escaped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from ._printable import printable

ROWS = 20  # the most rows shown of a table
_LETTERS = 300  # the most characters shown of a text
_REFRESH_S = 0.1


def notebook_bar() -> Callable[[int, int, str], None]:
    """Shows an empty progress bar below a notebook's cell, and returns the function that updates it."""
    from IPython.display import HTML, display

    shown: Any = display(HTML(""), display_id=True)
    last_s = 0.0

    def show_progress(done: int, total: int, what: str) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if done == total or now_s - last_s >= _REFRESH_S:
            last_s = now_s
            shown.update(
                HTML(f'<progress value="{done}" max="{max(total, 1)}"></progress> {done}/{total} {_text(what)}')
            )

    return show_progress


def _text(text: str) -> str:
    shown = printable(text.replace("\n", " "))
    return escape(shown if len(shown) <= _LETTERS else f"{shown[:_LETTERS]}...")


def title_html(title: str, below: str) -> str:
    return f"<div><b>{_text(title)}</b><br/>{_text(below)}</div>"


def table_html(
    headings: Sequence[str], rows: Sequence[Sequence[str]], *, count: int, numbers: Sequence[int] = ()
) -> str:
    """Returns a table of the first rows. `count` is the number of all rows; `numbers` are the columns of numbers."""

    def cell(tag: str, column: int, text: str) -> str:
        return f'<{tag} style="text-align:{"right" if column in numbers else "left"}">{_text(text)}</{tag}>'

    def row(tag: str, cells: Sequence[str]) -> str:
        return f"<tr>{''.join(cell(tag, column, text) for column, text in enumerate(cells))}</tr>"

    shown = rows[:ROWS]
    below = f"<div>and {count - len(shown):,} more</div>" if count > len(shown) else ""
    body = "".join(row("td", cells) for cells in shown)
    return f"<table><thead>{row('th', headings)}</thead><tbody>{body}</tbody></table>{below}"
