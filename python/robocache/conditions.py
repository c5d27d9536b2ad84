"""Finds the rows of a table where a condition is true: a pyarrow expression, or values of columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _lib, errors

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


def as_expression(name: str, where: Any) -> pc.Expression:
    """Returns `where` as an expression. It may be ``{column: value}``, with None for null.

    Raises:
        ArgumentTypeError: `where` is neither, or a column is not a str; the message begins with `name`.
        ArgumentError: pyarrow cannot hold a value.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(where, pc.Expression):
        return where
    if not isinstance(where, Mapping):
        raise errors.ArgumentTypeError(
            f"{name}: expected an expression of pyarrow.compute, such as pc.field('success'), or {{column: value}}, got "
            + type(where).__name__
        )
    expression = pc.scalar(True)
    try:
        for column, value in where.items():
            field = pc.field(_lib.text(name, column))
            expression &= field.is_null() if value is None else field == value
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        raise errors.ArgumentError(f"{name}: {error}") from error
    return expression


def true_rows(name: str, expression: pc.Expression, table: pa.Table, *, columns: str) -> np.ndarray:
    """Returns the rows where the expression is true, ascending. Null is not true.

    Raises:
        ArgumentError: the expression is not a bool of the table's columns; the message begins with `name` and lists `columns`.
    """
    import pyarrow as pa
    from pyarrow import acero

    row = "row"
    while row in table.column_names:
        row += "_"
    numbered = table.append_column(row, pa.array(np.arange(table.num_rows)))
    try:
        # This is table.filter() in the calling thread alone, since pyarrow's threads do not survive a fork.
        rows = acero.Declaration("table_source", acero.TableSourceNodeOptions(numbered))
        filtered = acero.Declaration("filter", acero.FilterNodeOptions(expression), [rows])
        numbers = filtered.to_table(use_threads=False)[row]
    except (pa.ArrowException, OverflowError, UnicodeError) as error:
        # pyarrow's message ends with the table's schema.
        reason = str(error).partition(f" in {table.column_names[0]}:")[0] if table.column_names else str(error)
        raise errors.ArgumentError(f"{name}: {reason}; expected a bool made of the columns {columns}") from error
    return np.sort(numbers.to_numpy())
