"""What the tap reads from each collective: one table for the C++ tap, the Python tap and the tests.

    OPS (wire) --name--> TRAITS --argument names--> positions in the schema of the torch that runs
                            |
                            +--c_header()--> the same table, compiled into the native tap

Arguments are named, never numbered: the schemas of `c10d::*` gain arguments from one torch version to the next.
"""

from __future__ import annotations

from dataclasses import dataclass

from ranksight.hooks import wire

SAMPLE_EVERY = 16  # Detail.SAMPLED records the operations whose sequence number in their group is a multiple of this

_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Traits:
    """How one op is described in its slot."""

    payload: str  # argument whose tensors give dtype, shape, numel and bytes; "" when there is none
    times_size: bool = False  # the payload is one member's share: S is that times the size of the group
    peer: str = ""  # argument with the root or the peer
    agrees: bool = True  # every member must call it alike, so it has a fingerprint
    p2p: int = 0  # 1: sends, 2: receives
    written: str = ""  # argument whose storages `wait_tensor` is later called on
    splits: tuple[str, str] | None = None  # arguments that give rows sent to and received from each peer


TRAITS: dict[str, Traits] = {
    "allreduce_": Traits("tensors", written="tensors"),
    "broadcast_": Traits("tensors", peer="root_rank", written="tensors"),
    "reduce_": Traits("tensors", peer="root_rank", written="tensors"),
    "allgather_": Traits("output_tensors", written="output_tensors"),
    "_allgather_base_": Traits("output_tensor", written="output_tensor"),
    "reduce_scatter_": Traits("input_tensors", written="output_tensors"),
    "_reduce_scatter_base_": Traits("input_tensor", written="output_tensor"),
    "gather_": Traits("input_tensors", times_size=True, peer="root_rank"),
    "scatter_": Traits("output_tensors", times_size=True, peer="root_rank", written="output_tensors"),
    "alltoall_": Traits(
        "input_tensors", agrees=False, written="output_tensors", splits=("input_tensors", "output_tensors")
    ),
    "alltoall_base_": Traits(
        "input", agrees=False, written="output", splits=("input_split_sizes", "output_split_sizes")
    ),
    "barrier": Traits(""),
    "monitored_barrier_": Traits(""),
    "send": Traits("tensors", peer="dst", agrees=False, p2p=1),
    "recv_": Traits("tensors", peer="src", agrees=False, p2p=2, written="tensors"),
    "recv_any_source_": Traits("tensors", agrees=False, p2p=2, written="tensors"),
    "allreduce_coalesced_": Traits("tensors", written="tensors"),
    "allgather_coalesced_": Traits("output_lists", written="output_lists"),
    "allgather_into_tensor_coalesced_": Traits("outputs", written="outputs"),
    "reduce_scatter_tensor_coalesced_": Traits("inputs", written="outputs"),
}


def fingerprint(op: int, reduce_op: int, root: int, dtype: int, numel: int) -> int:
    """Hash of what the members of a collective must agree on; never 0. The C++ tap computes the same."""
    value = 0xCBF29CE484222325
    for word in (op, reduce_op, root, dtype, numel):
        value = ((value ^ (word & _MASK)) * 0x100000001B3) & _MASK
        value ^= value >> 32
    return value or 1


def c_header() -> str:
    """The table as C++, in the order of `wire.OPS`."""
    rows = []
    for name, _ in wire.OPS:
        t = TRAITS[name]
        send, recv = t.splits or ("", "")
        flags = ", ".join(str(flag).lower() for flag in (t.times_size, t.agrees))
        rows.append(f'    {{"{t.payload}", "{t.peer}", "{t.written}", "{send}", "{recv}", {flags}, {t.p2p}}},')
    return "\n".join(
        [
            "namespace ranksight {",
            f"constexpr uint64_t SAMPLE_EVERY = {SAMPLE_EVERY};",
            "struct Traits {",
            "  const char *payload, *peer, *written, *send_splits, *recv_splits;",
            "  bool times_size, agrees;",
            "  int p2p;",
            "};",
            "constexpr Traits TRAITS[NUM_OPS] = {",
            *rows,
            "};",
            "}  // namespace ranksight",
            "",
        ]
    )
