r"""The wire format: every byte that a rank shares with the agent, in one file.

    rank process                                   agent
      tap (C++ or Python)  -> collectives ring  \
      Python hooks         -> events ring        > one mmap file per process on tmpfs -> reader
      both                 -> state, tables     /
      stop request        <- control block      <- agent

One file per process, little endian, in this order: header page (identity, sections, state, control), collectives
ring, events ring, tap table, hooks table. The layouts below are the only source: the Python packers, the agent's
numpy dtypes and the C++ header (`c_header`) are all derived from them, and a golden test pins the bytes.

Slots. A ring slot with index i lives at `i % slots`. Its writer stores ticket 0, fills the slot, and stores ticket
i + 1 last. A reader copies the slot and looks at the ticket again: i + 1 both times means a whole record. Time
fields that become known later (return, wait, completion) are single aligned 8-byte stores made only while the ticket
is still the writer's own, so an operation in flight is visible from outside even when its rank is stopped or dead.
A record with more values than fit takes the following `n_extra` slots too (continuation slots: ticket, then values).

Tables are append-only logs with one writer each (the tap; the Python hooks). An entry is `TABLE_ENTRY` (length of
the payload, kind) and its payload, padded to 8 bytes; entries of a kind are numbered from 1 in order of appearance,
and 0 means "none". `*_table_used` is stored after the entry, so a reader never sees half of one.

All times are CLOCK_MONOTONIC nanoseconds; 0 means "not yet" or "never".
"""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from enum import IntEnum, IntFlag

MAGIC = b"RSIGHT\x00\x01"
VERSION = 1
HEADER_BYTES = 4096
TAINTED_FILE = "tainted.json"  # beside the rings, written by the agent: {"clean_steps": int, "kind": str}

_SIZES = {"B": 1, "H": 2, "I": 4, "i": 4, "Q": 8, "q": 8, "d": 8}
_C_TYPES = {
    "B": "uint8_t",
    "H": "uint16_t",
    "I": "uint32_t",
    "i": "int32_t",
    "Q": "uint64_t",
    "q": "int64_t",
    "d": "double",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field: `code` is a struct format character, `count` > 1 makes an array, `writer` says who stores it."""

    name: str
    code: str
    offset: int
    writer: str
    meaning: str
    count: int = 1

    @property
    def packer(self) -> struct.Struct:
        """Little-endian packer of the whole field.

        One value is packed in native order where that is little endian: `struct` stores a "<" format byte by byte,
        which another process could see half done, and a native one with a single 8-byte store.
        """
        order = "@" if self.count == 1 and sys.byteorder == "little" else "<"
        return struct.Struct(f"{order}{self.count}{self.code}" if self.count > 1 else f"{order}{self.code}")

    @property
    def end(self) -> int:
        """Offset of the first byte after the field."""
        return self.offset + _SIZES[self.code] * self.count


@dataclass(frozen=True, slots=True)
class Layout:
    """A block of `size` bytes and its fields; offsets are relative to the block."""

    name: str
    size: int
    fields: tuple[Field, ...]

    def __getitem__(self, name: str) -> Field:
        """The field called `name`; KeyError names the layout."""
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(f"{self.name} has no field {name!r}")


HEADER = Layout(
    "header",
    HEADER_BYTES,
    (
        # identity: written once at creation, rank and world again when the process group is made
        Field("magic", "B", 0, "hooks", "MAGIC", 8),
        Field("version", "I", 8, "hooks", "VERSION"),
        Field("pid", "I", 12, "hooks", "process id"),
        Field("start_ticks", "Q", 16, "hooks", "start time of the process, clock ticks since boot: tells reused pids apart"),
        Field("rank", "i", 24, "hooks", "global rank, -1 while unknown"),
        Field("world_size", "i", 28, "hooks", "number of ranks, -1 while unknown"),
        Field("local_rank", "i", 32, "hooks", "rank on this host, -1 while unknown"),
        Field("generation", "I", 36, "hooks", "restarts of the job before this process (elastic)"),
        Field("created_monotonic_ns", "q", 40, "hooks", "CLOCK_MONOTONIC at creation"),
        Field("created_wall_ns", "q", 48, "hooks", "CLOCK_REALTIME at the same instant"),
        Field("tap", "I", 56, "hooks", "Tap"),
        Field("detail", "I", 60, "hooks", "Detail in force"),
        # sections
        Field("collectives_offset", "Q", 64, "hooks", "byte offset of the collectives ring"),
        Field("collectives_slots", "Q", 72, "hooks", "its slots"),
        Field("events_offset", "Q", 80, "hooks", "byte offset of the events ring"),
        Field("events_slots", "Q", 88, "hooks", "its slots"),
        Field("tap_table_offset", "Q", 96, "hooks", "byte offset of the tap table"),
        Field("tap_table_bytes", "Q", 104, "hooks", "its size"),
        Field("hooks_table_offset", "Q", 112, "hooks", "byte offset of the hooks table"),
        Field("hooks_table_bytes", "Q", 120, "hooks", "its size"),
        # state: the counters of the tap on cache lines of their own
        Field("collectives_head", "Q", 256, "tap", "slots reserved so far, continuation slots included"),
        Field("collectives_count", "Q", 264, "tap", "operations recorded so far"),
        Field("collectives_skipped", "Q", 272, "tap", "operations seen but not recorded (detail lowered)"),
        Field("tap_cost_ns", "Q", 280, "tap", "time spent in the tap on calling threads (scaled up when sampled)"),
        Field("late_completions", "Q", 288, "tap", "completions that found their slot overwritten"),
        Field("tap_table_used", "Q", 296, "tap", "bytes used in the tap table"),
        Field("tap_errors", "Q", 304, "tap", "internal errors of the tap, swallowed and counted"),
        Field("native_heartbeat_ns", "q", 320, "tap", "last beat of the native thread (runs without the GIL)"),
        Field("events_head", "Q", 384, "hooks", "event slots reserved so far"),
        Field("events_count", "Q", 392, "hooks", "events recorded so far"),
        Field("hooks_table_used", "Q", 400, "hooks", "bytes used in the hooks table"),
        Field("hooks_cost_ns", "Q", 408, "hooks", "time spent in Python hooks on calling threads"),
        Field("hooks_errors", "Q", 416, "hooks", "internal errors of the hooks, swallowed and counted"),
        Field("python_heartbeat_ns", "q", 424, "hooks", "last beat of the Python thread (needs the GIL)"),
        Field("step", "q", 448, "hooks", "step in progress, -1 before the first"),
        Field("step_begin_ns", "q", 456, "hooks", "when it began"),
        Field("microbatch", "i", 464, "hooks", "microbatch in progress, -1 when none"),
        Field("phase", "I", 468, "hooks", "Phase in progress"),
        Field("phase_begin_ns", "q", 472, "hooks", "when it began"),
        Field("stage", "i", 480, "hooks", "pipeline stage in progress, -1 when none"),
        Field("life", "I", 484, "hooks", "Life"),
        Field("last_error", "Q", 488, "hooks", "string number (hooks table) of the last unhandled exception, 0 when none"),
        # control: the only part that the agent writes
        Field("stop_after_step", "q", 1024, "agent", "leave after this step, -1 when no stop is asked"),
        Field("stop_action", "I", 1032, "agent", "StopAction"),
        Field("detail_wanted", "I", 1036, "agent", "Detail the agent asks for, 0 when the hooks decide"),
        Field("stop_request", "Q", 1040, "agent", "number of the request, stored last"),
        Field("stop_committed", "Q", 1048, "agent", "number of the request that no rank can miss any more: it holds"),
        Field("watch_until_step", "q", 1056, "agent", "modules are watched before this step; -1: never"),
        # answers to control
        Field("stop_acknowledged", "Q", 1152, "hooks", "number of the request that the rank has seen"),
        Field("stopped_after_step", "q", 1160, "hooks", "step after which the rank left, -1 while it runs"),
    ),
)

COLLECTIVE = Layout(
    "collective",
    256,
    (
        Field("ticket", "Q", 0, "tap", "slot index + 1, stored last"),
        Field("enqueue_ns", "q", 8, "tap", "the call entered the dispatcher"),
        Field("return_ns", "q", 16, "tap", "the call came back to its caller"),
        Field("wait_begin_ns", "q", 24, "tap", "the caller began to wait for the result"),
        Field("wait_end_ns", "q", 32, "tap", "the caller went on"),
        Field("complete_ns", "q", 40, "tap", "the operation was complete (see CollectiveFlag.UPPER_BOUND)"),
        Field("group_seq", "Q", 48, "tap", "number of the operation in its group from 0; P2P: in its (group, peer, direction, tag)"),
        Field("bytes", "Q", 56, "tap", "payload S of the nccl-tests convention: total over the group for gathers and scatters"),
        Field("fingerprint", "Q", 64, "tap", "hash of what must agree over the group; 0 where nothing must"),
        Field("step", "q", 72, "tap", "step in progress at enqueue"),
        Field("group", "I", 80, "tap", "group number in the tap table"),
        Field("call_site", "I", 84, "tap", "string number in the tap table, 0 when issued outside Python"),
        Field("thread", "I", 88, "tap", "native thread id"),
        Field("peer", "i", 92, "tap", "root or peer, rank within the group; -1 when none"),
        Field("tag", "i", 96, "tap", "P2P tag"),
        Field("microbatch", "i", 100, "tap", "microbatch in progress, -1 when none"),
        Field("op", "H", 104, "tap", "Op"),
        Field("reduce_op", "B", 106, "tap", "index into REDUCE_OPS, 255 when none"),
        Field("dtype", "B", 107, "tap", "index into DTYPES (torch's ScalarType), 255 when none"),
        Field("phase", "H", 108, "tap", "Phase at enqueue"),
        Field("flags", "H", 110, "tap", "CollectiveFlag"),
        Field("n_dims", "B", 112, "tap", "values[:n_dims] is the shape of the compared tensor"),
        Field("n_extra", "B", 113, "tap", "continuation slots that follow"),
        Field("n_send", "H", 114, "tap", "then so many send splits (rows per peer)"),
        Field("n_recv", "H", 116, "tap", "then so many receive splits"),
        Field("stage", "H", 118, "tap", "pipeline stage + 1, 0 when none"),
        Field("numel", "Q", 120, "tap", "elements of the compared tensor"),
        Field("values", "q", 128, "tap", "shape, send splits, receive splits", 16),
    ),
)

EVENT = Layout(
    "event",
    128,
    (
        Field("ticket", "Q", 0, "hooks", "slot index + 1, stored last"),
        Field("begin_ns", "q", 8, "hooks", "begin of the span, or the instant"),
        Field("end_ns", "q", 16, "hooks", "end; 0 while the span is open"),
        Field("step", "q", 24, "hooks", "step in progress"),
        Field("kind", "H", 32, "hooks", "EventKind"),
        Field("code", "H", 34, "hooks", "Phase, Action or another enum of that kind"),
        Field("name", "I", 36, "hooks", "string number in the hooks table, 0 when none"),
        Field("microbatch", "i", 40, "hooks", "-1 when none"),
        Field("stage", "i", 44, "hooks", "pipeline stage, -1 when none"),
        Field("layer", "i", 48, "hooks", "model layer, -1 when none"),
        Field("thread", "I", 52, "hooks", "native thread id"),
        Field("n_values", "H", 56, "hooks", "values in use, continuation slots included"),
        Field("n_extra", "H", 58, "hooks", "continuation slots that follow"),
        Field("flags", "I", 60, "hooks", "meaning depends on the kind"),
        Field("values", "d", 64, "hooks", "numbers of the event", 8),
    ),
)

COLLECTIVE_EXTRA_VALUES = COLLECTIVE.size // 8 - 1  # int64 values in a continuation slot
EVENT_EXTRA_VALUES = EVENT.size // 8 - 1  # doubles in a continuation slot

TABLE_ENTRY = struct.Struct("<IHH")  # payload length, TableKind, reserved
GROUP_SEEN = struct.Struct("<qiiI")  # TableKind.GROUP_SEEN: first use ns, size, own group rank, incarnation; then "name\0description"
GROUP_MADE = struct.Struct("<qI")  # TableKind.GROUP_MADE: made ns, n ranks; then n int32 global ranks, then "name\0axis"


class TableKind(IntEnum):
    """What a table entry holds."""

    STRING = 1  # UTF-8 text; call sites read "path/file.py:12 function"
    GROUP_SEEN = 2  # tap table: a process group at its first use
    GROUP_MADE = 3  # hooks table: its global ranks and axis name


class Tap(IntEnum):
    """How collectives are seen."""

    NONE = 0
    NATIVE = 1
    PYTHON = 2


class Detail(IntEnum):
    """How much is recorded; lowered when the hooks cost more than their budget."""

    FULL = 1
    SAMPLED = 2
    COUNTERS = 3


class Life(IntEnum):
    """Where the process is in its life."""

    RUNNING = 0
    EXCEPTION = 1  # an exception left the main thread
    EXITING = 2  # the interpreter began to shut down
    GROUP_DESTROYED = 3  # the default process group is gone, the process still runs


class StopAction(IntEnum):
    """What a stop request asks for."""

    NONE = 0
    CHECKPOINT_AND_STOP = 1
    STOP = 2


class Phase(IntEnum):
    """What the main thread of a rank is doing."""

    OTHER = 0
    STARTUP = 1
    DATA = 2
    FORWARD = 3
    BACKWARD = 4
    OPTIMIZER = 5
    CHECKPOINT = 6
    EVALUATION = 7
    LOAD = 8
    COMPILE = 9
    PARTITION = 10


class EventKind(IntEnum):
    """What an event says; `values` in brackets."""

    STEP = 1  # span of a training step
    PHASE = 2  # span; code: Phase
    LOSS = 3  # [loss]
    GRAD_NORM = 4  # [norm]
    EXPERTS = 5  # layer; values: tokens per expert over the group that routed them
    GC = 6  # span of a Python garbage collection; code: generation [collected]
    PIPELINE = 7  # span; code: Action; stage, microbatch
    CHECKPOINT = 8  # span of writing one [step, bytes]; name: path
    EXCEPTION = 9  # name: type and text
    BATCH = 10  # [samples, tokens, cursor, fingerprint]
    CHECKSUM = 11  # code: optimizer, layer: slice of its parameters [low and high 32 bits of a sum that replicas share]
    MEMORY = 12  # [rss bytes, device bytes allocated, device bytes reserved]
    NOTE = 13  # name: text; the hooks say what they could not do
    DATA = 14  # span in the data iterator
    FACT = 15  # name: "key=value", what run.json should say of the run
    INPUT = 16  # [elements of the tensors given to the wrapped model in this step]; said when it changes
    ORIGIN = 17  # code: Origin; name: module or parameter, layer, microbatch, stage: the first number that is not finite
    DROPPED = 18  # layer [routed tokens that no expert got]; after the layer's EXPERTS


class Origin(IntEnum):
    """How a number that is not finite came into a module."""

    AROSE = 1  # its inputs and weights were finite
    WEIGHT = 2  # one of its own weights is not finite
    CAME_IN = 3  # an input was not finite
    GRADIENT = 4  # backward: the gradient that came to its output, or that of a parameter


class Action(IntEnum):
    """Pipeline actions; recv and send in the direction of the named pass."""

    FORWARD = 1
    BACKWARD = 2  # input and weight gradients together
    INPUT_GRAD = 3
    WEIGHT_GRAD = 4
    SEND_FORWARD = 5
    RECV_FORWARD = 6
    SEND_BACKWARD = 7
    RECV_BACKWARD = 8
    UNSHARD = 9
    RESHARD = 10
    REDUCE_GRAD = 11
    SCHEDULE = 12  # the whole schedule.step()


class CollectiveFlag(IntFlag):
    """Properties of one operation."""

    ASYNC = 1  # the caller asked for a handle
    UPPER_BOUND = 2  # no future: complete_ns is when the wait ended
    FAILED = 4  # the call or the operation raised
    NO_COMPLETION = 8  # nothing will ever report completion
    COALESCED = 16  # issued inside a coalescing manager
    TRUNCATED = 32  # more splits than continuation slots can hold


# (dispatcher op, public name). The op code is the position + 1.
OPS: tuple[tuple[str, str], ...] = (
    ("allreduce_", "all_reduce"),
    ("broadcast_", "broadcast"),
    ("reduce_", "reduce"),
    ("allgather_", "all_gather"),
    ("_allgather_base_", "all_gather_into_tensor"),
    ("reduce_scatter_", "reduce_scatter"),
    ("_reduce_scatter_base_", "reduce_scatter_tensor"),
    ("gather_", "gather"),
    ("scatter_", "scatter"),
    ("alltoall_", "all_to_all"),
    ("alltoall_base_", "all_to_all_single"),
    ("barrier", "barrier"),
    ("monitored_barrier_", "monitored_barrier"),
    ("send", "send"),
    ("recv_", "recv"),
    ("recv_any_source_", "recv_any_source"),
    ("allreduce_coalesced_", "all_reduce_coalesced"),
    ("allgather_coalesced_", "all_gather_coalesced"),
    ("allgather_into_tensor_coalesced_", "all_gather_into_tensor_coalesced"),
    ("reduce_scatter_tensor_coalesced_", "reduce_scatter_tensor_coalesced"),
)
OP_CODES = {name: code for code, (name, _) in enumerate(OPS, 1)}
OP_NAMES = {code: public for code, (_, public) in enumerate(OPS, 1)}
P2P_OPS = frozenset(OP_CODES[name] for name in ("send", "recv_", "recv_any_source_"))
UNEVEN_OPS = frozenset(OP_CODES[name] for name in ("alltoall_", "alltoall_base_"))

REDUCE_OPS = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor", "premul_sum")
DTYPES = (
    "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64", "complex32", "complex64",
    "complex128", "bool", "qint8", "quint8", "qint32", "bfloat16", "quint4x2", "quint2x4", "bits1x8", "bits2x4",
    "bits4x2", "bits8", "bits16", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "uint16",
    "uint32", "uint64",
)  # fmt: skip
NONE_BYTE = 255  # reduce_op and dtype when there is none


def c_header() -> str:
    """The layouts as C++ constants, compiled into the native tap: `ranksight::COLLECTIVE_group_seq` and so on."""
    lines = ["#pragma once", "#include <cstdint>", "namespace ranksight {"]
    for layout in (HEADER, COLLECTIVE, EVENT):
        prefix = layout.name.upper()
        lines.append(f"constexpr uint64_t {prefix}_SIZE = {layout.size};")
        for field in layout.fields:
            lines.append(f"constexpr uint64_t {prefix}_{field.name} = {field.offset};  // {_C_TYPES[field.code]}")
    for flag in CollectiveFlag:
        lines.append(f"constexpr uint16_t FLAG_{flag.name} = {flag.value};")
    for kind in TableKind:
        lines.append(f"constexpr uint16_t TABLE_{kind.name} = {kind.value};")
    for detail in Detail:
        lines.append(f"constexpr uint32_t DETAIL_{detail.name} = {detail.value};")
    names = ", ".join(f'"{name}"' for name, _ in OPS)
    lines.append(f"constexpr int NUM_OPS = {len(OPS)};")
    lines.append(f"constexpr const char* OP_NAMES[NUM_OPS] = {{{names}}};")
    for name, code in OP_CODES.items():
        lines.append(f"constexpr uint16_t OP_{name.strip('_').upper()} = {code};")
    lines.append(f"constexpr uint64_t COLLECTIVE_VALUES = {COLLECTIVE['values'].count};")
    lines.append(f"constexpr uint64_t COLLECTIVE_EXTRA_VALUES = {COLLECTIVE_EXTRA_VALUES};")
    lines.append("}  // namespace ranksight")
    return "\n".join(lines) + "\n"
