"""The columns of the archive, once: the writer, the reader and docs/archive.md are derived from these tables.

    COLLECTIVES  one row per operation and rank
    EVENTS       one row per event or span of a rank

`python -m ranksight.agent.archive.schema` prints docs/archive.md. A change of meaning raises VERSION, which stands in
the metadata of every file.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import pyarrow as pa

VERSION = 1


@dataclass(frozen=True, slots=True)
class Column:
    """One column; null where `meaning` says so, and never 0 for what is not known."""

    name: str
    type: Any
    meaning: str


_I4, _I8, _STRING, _BOOL = pa.int32(), pa.int64(), pa.string(), pa.bool_()
_WHO = (
    Column("host", _STRING, "Host of the rank: times of one host are on one clock."),
    Column("rank", _I4, "Global rank."),
    Column("generation", _I4, "Restarts of the job before this process."),
)
_WHERE = (
    Column("step", _I8, "Training step in progress; -1 before the first."),
    Column("microbatch", _I4, "Microbatch in progress; null when none."),
    Column("stage", _I4, "Pipeline stage; null when none."),
)

COLLECTIVES: tuple[Column, ...] = (
    *_WHO,
    Column("group", _STRING, "Name of the process group."),
    Column("axis", _STRING, "What the group is for: `dp`, `tp`, `pp`, `ep`, `world`, or its description."),
    Column("incarnation", _I4, "Groups of this name before it."),
    Column("members", _STRING, "Global ranks of the group, with commas between them; null when nobody said them."),
    Column("seq", _I8, "Number of the operation in its group; for P2P in its group, peer, direction and tag."),
    Column("op", _STRING, "`all_reduce`, `send`, ..."),
    Column("peer", _I4, "Global rank of the root or peer; null when there is none or it is not known."),
    Column("tag", _I4, "Tag of a P2P operation."),
    Column("reduce_op", _STRING, "`sum`, ...; null when none."),
    Column("dtype", _STRING, "Data type; null when not known."),
    Column("bytes", _I8, "Payload by the convention of nccl-tests."),
    Column("numel", _I8, "Elements of the compared tensor."),
    Column("fingerprint", pa.uint64(), "Hash of what must agree over the group; null where nothing must."),
    *_WHERE,
    Column("phase", _STRING, "What the main thread was doing: `forward`, ..."),
    Column("call_site", _STRING, "File, line and function; null when the call did not come from Python."),
    Column("thread", _I8, "Native thread id."),
    Column("asynchronous", _BOOL, "The caller asked for a handle."),
    Column("failed", _BOOL, "The call or the operation raised."),
    Column("upper_bound", _BOOL, "`complete_ns` is only when the wait ended: the operation may have ended earlier."),
    Column("enqueue_ns", _I8, "The call."),
    Column("return_ns", _I8, "The call came back; null when it did not."),
    Column("wait_begin_ns", _I8, "The caller began to wait; null when nobody saw it."),
    Column("wait_end_ns", _I8, "The caller went on; null when nobody saw it."),
    Column("complete_ns", _I8, "The operation was complete; null when that was never seen."),
)

EVENTS: tuple[Column, ...] = (
    *_WHO,
    Column("kind", _STRING, "`step`, `phase`, `loss`, `pipeline`, `experts`, ..."),
    Column("what", _STRING, "Name of the phase or pipeline action; null for other kinds."),
    Column("code", _I4, "Number that depends on the kind: generation of a `gc`, optimizer of a `checksum`."),
    Column("text", _STRING, "Text of a note, fact or exception, path of a checkpoint; null when none."),
    *_WHERE,
    Column("layer", _I4, "Model layer; null when none."),
    Column("thread", _I8, "Native thread id."),
    Column("begin_ns", _I8, "Begin of the span, or the instant."),
    Column("end_ns", _I8, "End of the span; null for an instant and for a span that never ended."),
    Column("values", pa.list_(pa.float64()), "Numbers of the event; see the table below."),
)

VALUES = {
    "step": "CPU seconds of the process, tokens of the whole job in the step, as far as they are known",
    "loss": "loss",
    "grad_norm": "gradient norm",
    "experts": "tokens per expert over the group that routed them",
    "dropped": "routed tokens of the layer that no expert got",
    "gc": "objects collected",
    "checkpoint": "step, bytes",
    "batch": "samples, tokens, cursor, fingerprint",
    "checksum": "low and high 32 bits of a sum that replicas share (`layer` is the slice of the parameters)",
    "memory": "resident bytes, device bytes allocated, device bytes reserved",
}

TABLES = {"collectives": COLLECTIVES, "events": EVENTS}
SCHEMAS = {
    name: pa.schema([pa.field(column.name, column.type) for column in columns]) for name, columns in TABLES.items()
}


def markdown() -> str:
    """docs/archive.md: the text beside this module with the tables in it."""
    text = files(__package__).joinpath("archive.md").read_text()
    for name, columns in TABLES.items():
        rows = "\n".join(f"| `{column.name}` | {column.type} | {column.meaning} |" for column in columns)
        text = text.replace(f"{{{name}}}", f"| column | type | meaning |\n|---|---|---|\n{rows}")
    rows = "\n".join(f"| `{kind}` | {meaning} |" for kind, meaning in VALUES.items())
    return text.replace("{values}", f"| kind | values |\n|---|---|\n{rows}")


if __name__ == "__main__":
    print(markdown(), end="")
