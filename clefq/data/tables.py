"""Rows of a user's table: CSV, TSV, JSON Lines or Parquet, streamed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from clefq.data.readers import Row, csv_rows, jsonl_rows
from clefq.errors import DefinitionError

KINDS = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")


def table_rows(path: Path) -> Iterator[Row]:
    """Rows as dicts of column → value.

    Raises:
        DefinitionError: The file is missing or of another kind.
    """
    if not path.is_file():
        raise DefinitionError(
            f"no file {path}.", fix="paths in a definition are relative to the definition's folder."
        )
    kind = path.suffix.lower()
    if kind in (".csv", ".tsv"):
        return csv_rows(path.parent, path.name, delimiter="\t" if kind == ".tsv" else ",")
    if kind in (".jsonl", ".ndjson"):
        return jsonl_rows(path.parent, path.name)
    if kind == ".parquet":
        return _parquet_rows(path)
    raise DefinitionError(f"{path} is none of {', '.join(KINDS)}.", fix="convert it to one.")


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise DefinitionError(f"{path} is not a whole Parquet file.") from error
    number = 0
    for batch in file.iter_batches(batch_size=4096):
        for value in batch.to_pylist():
            number += 1
            yield Row(path.name, number, value)
