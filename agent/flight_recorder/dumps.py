"""Flight Recorder dumps as PyTorch writes them: pickle or JSON, one file per rank, under any name.

    bytes -> plain containers, numbers and strings only -> Dump(rank, groups, entries)

A dump says little about itself. Its rank stands in its content only sometimes, so else it is the last number of the
file's name (`rank_3.json`, `_dump_14`, `nccl_trace_rank_node02_5`). The default group is called '' in `pg_config` of
gloo dumps and '0' in their entries. A pickle can run code, so nothing but plain data is let out of one.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from ranksight.hooks.records import Collective, Group
from ranksight.hooks.wire import CollectiveFlag

KNOWN_MAJOR = 2
MAX_BYTES = 1 << 30

# Nothing about these must agree over a group but that they are called.
_FREE = frozenset({"all_to_all", "all_to_all_single", "gather", "scatter", "send", "recv"})
_P2P = re.compile(r"(send|recv) (\d+)(->|<-)(\d+)")
_ALIASES = {
    "_all_gather_base": "all_gather_into_tensor",
    "_allgather_base": "all_gather_into_tensor",
    "allgather": "all_gather",
    "allreduce": "all_reduce",
    "_reduce_scatter_base": "reduce_scatter_tensor",
}


class DumpError(Exception):
    """A file that can't be read as a dump; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank wrote. `completed` and `enqueued`: last numbers per group name, where the dump says them."""

    path: Path
    rank: int
    version: str
    backend: str
    groups: Mapping[str, Group]
    entries: tuple[Collective, ...]  # in the order of their launch; complete_ns is the creation when only "retired" is known
    completed: Mapping[str, int] = field(default_factory=dict)
    enqueued: Mapping[str, int] = field(default_factory=dict)


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise DumpError(f"it refers to {module}.{name}; dumps hold plain data only, so this is not read")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise DumpError("it refers to objects outside of the file")


def read_folder(path: Path) -> tuple[dict[int, Dump], list[str]]:
    """All dumps in a folder (or one file) by rank, and notes about files that are none.

    Raises DumpError when there is no dump, when a version is unknown, or when two files claim one rank.
    """
    if not path.exists():
        raise DumpError(f"{path}: no such file or folder")
    files = sorted(child for child in path.iterdir() if child.is_file()) if path.is_dir() else [path]
    dumps: dict[int, Dump] = {}
    notes: list[str] = []
    for file in files:
        try:
            content = _load(file)
        except DumpError as error:
            notes.append(f"{file.name}: not read: {error}")
            continue
        dump = parse(file, content)
        if dump.rank in dumps:
            raise DumpError(f"{file.name} and {dumps[dump.rank].path.name} both claim rank {dump.rank}")
        dumps[dump.rank] = dump
    if not dumps:
        raise DumpError(f"{path}: no Flight Recorder dump" + ("".join(f"; {note}" for note in notes[:5])))
    return dumps, notes


def _load(file: Path) -> dict[str, Any]:
    if file.stat().st_size > MAX_BYTES:
        raise DumpError(f"larger than {MAX_BYTES >> 20} MiB")
    raw = file.read_bytes()
    try:
        content = json.loads(raw) if raw.lstrip()[:1] == b"{" else _PlainUnpickler(io.BytesIO(raw)).load()
    except DumpError:
        raise
    except Exception as error:  # a broken pickle can raise almost anything
        raise DumpError(f"neither JSON nor pickle ({type(error).__name__})") from error
    # A recorder that has seen nothing leaves "entries" out.
    if not isinstance(content, dict) or "version" not in content or not {"entries", "pg_config"} & content.keys():
        raise DumpError("no Flight Recorder dump: it has no version, or neither entries nor groups")
    return content


def parse(file: Path, content: Mapping[str, Any]) -> Dump:
    """The content of one dump; raises DumpError when its version is unknown or its fields are not as they should be."""
    version = str(content["version"])
    if version.partition(".")[0] != str(KNOWN_MAJOR):
        raise DumpError(f"{file.name}: Flight Recorder version {version}; this reader knows {KNOWN_MAJOR}.x")
    try:
        return _parse(file, version, content)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise DumpError(f"{file.name}: version {version}, but its fields are not as expected: {error!r}") from error


def _parse(file: Path, version: str, content: Mapping[str, Any]) -> Dump:
    rank = _rank(file, content)
    raw = content.get("entries") or []
    groups: dict[str, Group] = {}
    for name, config in (content.get("pg_config") or {}).items():
        ranks = config.get("ranks", [])
        members = tuple(json.loads(ranks) if isinstance(ranks, str) else ranks)
        groups[str(name)] = Group(str(name), str(config.get("desc", "")), 0, members, len(members))
    names = {str(entry["pg_id"]): str(entry["process_group"][0]) for entry in raw}
    for name in names.values():
        if name not in groups:
            default = groups.get("") or (next(iter(groups.values())) if len(groups) == 1 else None)
            members = default.ranks if default else ()
            groups[name] = Group(name, "default_pg", 0, members, len(members))
    status = {names.get(str(key), ""): value for key, value in (content.get("pg_status") or {}).items()}
    backend = str(raw[0]["profiling_name"]).partition(":")[0] if raw else ""
    return Dump(
        path=file,
        rank=rank,
        version=version,
        backend=backend,
        groups=groups,
        entries=tuple(_entry(rank, entry, groups) for entry in sorted(raw, key=lambda entry: int(entry["record_id"]))),
        completed={name: int(value["last_completed_collective"]) for name, value in status.items() if name},
        enqueued={name: int(value["last_enqueued_collective"]) for name, value in status.items() if name},
    )


def _rank(file: Path, content: Mapping[str, Any]) -> int:
    if isinstance(content.get("rank"), int):
        return int(content["rank"])
    numbers = re.findall(r"\d+", file.stem if file.suffix in {".json", ".pkl", ".pickle"} else file.name)
    if not numbers:
        raise DumpError(f"{file.name}: neither its content nor its name says which rank wrote it")
    return int(numbers[-1])


def _entry(rank: int, entry: Mapping[str, Any], groups: Mapping[str, Group]) -> Collective:
    group = groups[str(entry["process_group"][0])]
    label = str(entry["profiling_name"]).partition(":")[2]
    p2p = _P2P.match(label)
    op = p2p[1] if p2p else _ALIASES.get(label, label)
    sizes = tuple(tuple(int(n) for n in size) for size in entry["input_sizes"])
    dtypes = tuple(entry.get("input_dtypes") or ())
    created = int(entry["time_created_ns"])
    done = entry.get("state") == "completed" or bool(entry.get("retired"))
    # "retired" only says that the library looks at it no longer: it may have failed.
    flags = 0 if entry.get("state") == "completed" else CollectiveFlag.UPPER_BOUND
    return Collective(
        rank=rank,
        ticket=int(entry["record_id"]) + 1,
        op=op,
        group=group,
        group_seq=int(entry["p2p_seq_id"] if entry.get("is_p2p") else entry["collective_seq_id"]),
        enqueue_ns=created,
        return_ns=created,
        wait_begin_ns=None,
        wait_end_ns=None,
        complete_ns=int(entry.get("time_discovered_completed_ns") or created) if done else None,
        bytes=0,
        numel=0,
        dtype=str(dtypes[0]).lower() if dtypes else None,
        reduce_op=None,
        peer=int(p2p[4]) if p2p else -1,
        tag=0,
        fingerprint=0 if op in _FREE else _mark(op, sizes, dtypes, entry),
        call_site=_site(entry.get("frames") or ()),
        step=-1,
        microbatch=-1,
        stage=-1,
        phase="other",
        thread=0,
        flags=int(flags),
        shape=sizes[0] if sizes else (),
    )


def _mark(op: str, sizes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...], entry: Mapping[str, Any]) -> int:
    """A number for what must agree. Gathers into outputs of unequal sizes are legal, their inputs then differ."""
    outputs = {tuple(size) for size in entry.get("output_sizes") or ()}
    compared = () if op == "all_gather" and len(outputs) > 1 else sizes
    return hash((op, compared, dtypes)) & (1 << 63) - 1 | 1


def _site(frames: Any) -> str | None:
    """The innermost frame that is not of PyTorch itself, as `file.py:12 function`."""
    for frame in frames:
        if "/torch/" not in str(frame.get("filename", "")):
            return f"{frame.get('filename')}:{frame.get('line')} {frame.get('name')}"
    return None
