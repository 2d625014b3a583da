"""The recorded operations of a job as a frozen table of numpy columns, and the reader of a foreign Parquet trace.

    Parquet rows -> columns checked one by one -> Operations (one row an operation) -> Steps (equal steps, as a grid)

A worker is one place in the grid of data-parallel replicas (dp) and pipeline stages; tensor parallel ranks of one place
count as one worker. A stage can hold several chunks of the model (interleaved schedules); `global_chunk` numbers them in
the order of the model. Times are seconds of one clock.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ranksight.agent.errors import RanksightError
from ranksight.agent.words import numbers_in_words

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class TraceError(RanksightError):
    """A trace that can't be read or replayed; says which file, column or operation, and what was expected."""


class OpType(StrEnum):
    """Operation types by their names in foreign traces."""

    FORWARD = "forward-compute"
    BACKWARD = "backward-compute"
    FORWARD_SEND = "forward-send"
    FORWARD_RECV = "forward-recv"
    BACKWARD_SEND = "backward-send"
    BACKWARD_RECV = "backward-recv"
    PARAMS_GATHER = "params-all-gather"
    GRADS_REDUCE = "grads-reduce-scatter"
    SEPARATE_GRADS = "separate-grads-all-reduce"
    LAYERNORM_GRADS = "layernorm-grads-all-reduce"
    EMBEDDING_GRADS = "embedding-grads-all-reduce"
    GC = "gc"
    CLIP = "optimizer-clip-main-grad"
    OPTIMIZER = "optimizer"


TYPES = tuple(OpType)  # a type's code in `Operations.type` is its place here
CODE = {type_: code for code, type_ in enumerate(TYPES)}

_SEPARATELY = "tensor parallel ranks of one place must be reduced to one row"
_FOREIGN = {  # column of the foreign trace -> column of Operations; the type and the times are handled apart
    "step": "step", "dp_rank": "dp", "stage": "stage", "rank": "rank", "seq_id": "sequence", "mc": "chunk",
    "gmc": "global_chunk", "mb_id": "microbatch",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Operations:
    """One row per operation; -1 where a chunk or microbatch does not apply.

    `sequence` counts a worker's operations of one type within a step.
    """

    step: Ints
    dp: Ints
    stage: Ints
    rank: Ints
    type: Ints  # index into TYPES
    sequence: Ints
    chunk: Ints
    global_chunk: Ints
    microbatch: Ints
    start: Floats  # seconds
    end: Floats

    def __post_init__(self) -> None:
        lengths = {field.name: len(getattr(self, field.name)) for field in fields(self)}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"columns differ in length: {lengths}")

    def __len__(self) -> int:
        return len(self.step)

    def at(self, rows: Any) -> Operations:
        """The rows of an index or mask, in its order."""
        return Operations(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps that consist of the same operations. `grid[key, step, dp]` is a row of `operations`."""

    operations: Operations
    grid: Ints
    steps: Ints
    left_out: Ints  # steps that have other operations than most: cut off by the window, or not recorded in full
    ranks: Ints  # [stage, dp]


def read_trace(path: Path) -> Operations:
    """Read a trace with the columns of the OSDI'25 artifact. Raises TraceError."""
    if not path.is_file():
        raise TraceError(f"{path}: no such file; expected a Parquet file with one row per operation")
    try:
        table = pq.ParquetFile(path).read()
    except (OSError, pa.ArrowException) as error:
        raise TraceError(f"{path}: not a readable Parquet file; expected one row per operation ({error})") from error
    expected = [*_FOREIGN, "optype", "start_ts", "duration"]
    missing = [name for name in expected if name not in table.column_names]
    if missing:
        raise TraceError(
            f"{path}: no column {', '.join(missing)}; expected {', '.join(expected)}, found {', '.join(table.column_names)}"
        )
    if not table.num_rows:
        raise TraceError(f"{path}: no rows; expected one row per operation")
    columns = {ours: _integers(path, table, theirs) for theirs, ours in _FOREIGN.items()}
    start, seconds = _seconds(path, table, "start_ts"), _seconds(path, table, "duration")
    if seconds.min() < 0:
        raise TraceError(f"{path}: column duration, row {int(seconds.argmin())}: {seconds.min()}; expected seconds >= 0")
    return Operations(type=_types(path, table), start=start, end=start + seconds, **columns)


def equal_steps(operations: Operations) -> Steps:
    """Arrange operations as a grid. Raises TraceError where places or operations are missing, or given twice."""
    for name in ("dp", "stage"):
        there = np.unique(getattr(operations, name))
        if not np.array_equal(there, np.arange(len(there))):
            raise TraceError(f"{name} ranks are {numbers_in_words(there.tolist())}; expected every number from 0")
    table = operations.at(
        np.lexsort((operations.sequence, operations.type, operations.stage, operations.dp, operations.step))
    )
    keys = np.stack((table.dp, table.stage, table.type, table.sequence), axis=1)
    twice = np.flatnonzero((table.step[1:] == table.step[:-1]) & (keys[1:] == keys[:-1]).all(axis=1))
    if len(twice):
        raise TraceError(f"two rows for {_where(table, int(twice[0]))}; {_SEPARATELY}")

    steps, first = np.unique(table.step, return_index=True)
    bounds = np.append(first, len(table))
    shapes = [keys[a:b].tobytes() for a, b in pairwise(bounds)]
    usual = Counter(shapes).most_common(1)[0][0]
    kept = np.array([shape == usual for shape in shapes])
    rows = np.stack([np.arange(bounds[i], bounds[i + 1]) for i in np.flatnonzero(kept)])  # [step, row within a step]

    dp_size = int(table.dp.max()) + 1
    counts = np.bincount(table.dp[rows[0]], minlength=dp_size)
    if len(set(counts.tolist())) != 1:
        raise TraceError(f"step {table.step[rows[0, 0]]}: the dp ranks have {counts.tolist()} operations; expected as many each")
    grid = rows.reshape(len(rows), dp_size, -1).transpose(2, 0, 1)
    other = np.argwhere(keys[grid[:, 0], 1:] != keys[grid[:, 0, :1], 1:])
    if len(other):
        raise TraceError(f"dp rank 0 has no {_where(table, int(grid[other[0, 0], 0, other[0, 1]]))}; expected equal replicas")
    return Steps(table, grid, steps[kept], steps[~kept], _ranks(table))


def _ranks(table: Operations) -> Ints:
    """The rank at each [stage, dp]."""
    stages, dp_size = int(table.stage.max()) + 1, int(table.dp.max()) + 1
    ranks = np.full((stages, dp_size), -1)
    ranks[table.stage, table.dp] = table.rank
    wrong = np.flatnonzero(ranks[table.stage, table.dp] != table.rank)
    if len(wrong):
        row = int(wrong[0])
        places = f"{table.rank[row]} and {ranks[table.stage[row], table.dp[row]]}"
        raise TraceError(f"ranks {places} are both at dp {table.dp[row]}, stage {table.stage[row]}; {_SEPARATELY}")
    if (ranks < 0).any():
        stage, dp = np.argwhere(ranks < 0)[0]
        raise TraceError(f"no operation at dp {dp}, stage {stage}; expected operations of all {stages * dp_size} workers")
    return ranks


def _where(table: Operations, row: int) -> str:
    return (
        f"{TYPES[table.type[row]]} number {table.sequence[row]} of step {table.step[row]},"
        f" dp {table.dp[row]}, stage {table.stage[row]}"
    )


def _column(path: Path, table: pa.Table, name: str, wanted: pa.DataType) -> pa.ChunkedArray:
    column = table[name]
    if column.null_count:
        raise TraceError(f"{path}: column {name}: {column.null_count} of {table.num_rows} values are missing; expected none")
    try:
        return column.cast(wanted)
    except pa.ArrowException as error:
        raise TraceError(f"{path}: column {name} is {column.type}; expected {wanted} ({error})") from error


def _integers(path: Path, table: pa.Table, name: str) -> Ints:
    return np.asarray(_column(path, table, name, pa.int64()).to_numpy(), np.int64)


def _seconds(path: Path, table: pa.Table, name: str) -> Floats:
    values = np.asarray(_column(path, table, name, pa.float64()).to_numpy(), np.float64)
    if not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise TraceError(f"{path}: column {name}, row {row}: {values[row]}; expected seconds")
    return values


def _types(path: Path, table: pa.Table) -> Ints:
    encoded = _column(path, table, "optype", pa.string()).combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    unknown = sorted(set(names) - set(CODE))
    if unknown:
        raise TraceError(f"{path}: column optype: {', '.join(unknown)}; expected one of {', '.join(TYPES)}")
    codes: Ints = np.array([CODE[name] for name in names], np.int64)
    return codes[np.asarray(encoded.indices.to_numpy(), np.int64)]
