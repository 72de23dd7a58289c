"""List columns of a frame as flat values plus offsets, without a Python loop over the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa


@dataclass(frozen=True, slots=True)
class ListColumn:
    """A column of lists.

    Attributes:
        start: First value of each row, int64 [m + 1]; a null row is empty.
        values: All values [total]; a null or NaN inside a list is NaN or None.
        null: Rows that are null, bool [m].
    """

    start: npt.NDArray[np.int64]
    values: npt.NDArray[Any]
    null: npt.NDArray[np.bool_]

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """Values in each row, int64 [m]."""
        return np.diff(self.start)


def list_column(column: pd.Series[Any], kind: pa.DataType) -> ListColumn:
    """Flattens a column of lists or numpy arrays.

    Args:
        column: The column.
        kind: Arrow type of the values.

    Raises:
        pa.ArrowInvalid: A value is of another type (so does `pa.ArrowTypeError`).
    """
    lists = arrow_array(column, pa.large_list(kind))
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    start = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    null = lists.is_null().to_numpy(zero_copy_only=False)
    return ListColumn(start, lists.flatten().to_numpy(zero_copy_only=False), null)


def arrow_array(column: pd.Series[Any], kind: pa.DataType) -> pa.Array:
    """A column as one Arrow array; without a copy of each value where the frame holds Arrow's own.

    Args:
        column: The column; NaN is null.
        kind: Type of the array.

    Raises:
        pa.ArrowInvalid: A value is of another type (so does `pa.ArrowTypeError`).
    """
    if isinstance(column.dtype, pd.ArrowDtype):
        found = pa.array(column.array).cast(kind)
    else:
        found = pa.array(column.to_numpy(dtype=object), type=kind, from_pandas=True)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def plain_values(column: pd.Series[Any]) -> list[Any]:
    """A column as Python values; a null of Arrow's is None."""
    if isinstance(column.dtype, pd.ArrowDtype):
        values: list[Any] = pa.array(column.array).to_pylist()
        return values
    return list(column.tolist())
