"""The faults by name: what they do, what their size means, and which finding they should lead to.

    Fault.STRAGGLER.spec -> Spec(ranks, unit, size, finding, does)
    markdown()           -> the table in docs/faults.md

No torch here: a wrong fault is refused before anything heavy is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum


class Who(StrEnum):
    """Which ranks a fault strikes."""

    ONE = "one rank"
    STAGE = "the pipeline stage of the rank"
    ALL = "all ranks"
    TURNS = "all ranks in turn"
    FAVOURED = "all routers, in favour of the rank"


class Needs(StrEnum):
    """What the plan must have."""

    NOTHING = ""
    PEERS = "two ranks"
    EXPERTS = "ep > 1"
    CHECKPOINTS = "a checkpoint folder"
    RESUME = "a resume"
    REPLICAS = "data_parallel replicate and dp > 1"


@dataclass(frozen=True, slots=True)
class Spec:
    """One row of the table. `size` is the default; `unit` empty: the size means nothing. `lasts`: to the end."""

    does: str
    finding: str
    who: Who = Who.ONE
    unit: str = ""
    size: float = 0.0
    lasts: bool = False
    needs: Needs = Needs.NOTHING
    cause: str = ""


class Fault(Enum):
    """All faults. The value is the name on the command line with dashes; underscores are taken, too."""

    KILL = "kill"
    EXCEPTION = "exception"
    EXIT = "exit"
    OOM_SWALLOWED = "oom-swallowed"
    FREEZE = "freeze"
    GIL = "gil"
    HANG = "hang"
    SPIN = "spin"
    LOADER_HANG = "loader-hang"
    DATA_EXHAUSTED = "data-exhausted"
    DEADLOCK_GROUPS = "deadlock-groups"
    DEADLOCK_RECV = "deadlock-recv"
    NETWORK_CUT = "network-cut"
    SHAPE_MISMATCH = "shape-mismatch"
    DTYPE_MISMATCH = "dtype-mismatch"
    REDUCE_OP_MISMATCH = "reduce-op-mismatch"
    ROOT_MISMATCH = "root-mismatch"
    SPLIT_MISMATCH = "split-mismatch"
    SKIPPED_CALL = "skipped-call"
    EXTRA_CALL = "extra-call"
    BITFLIP = "bitflip"
    STRAGGLER = "straggler"
    STRAGGLER_BACKWARD = "straggler-backward"
    STRAGGLER_IDLE = "straggler-idle"
    SLOW_INPUT = "slow-input"
    INPUT_STALL = "input-stall"
    PAUSE = "pause"
    GC_PAUSES = "gc-pauses"
    GIL_THREAD = "gil-thread"
    OVERSUBSCRIBE = "oversubscribe"
    SLOW_LINK = "slow-link"
    SLOW_NETWORK = "slow-network"
    REGRESSION = "regression"
    STAGE_IMBALANCE = "stage-imbalance"
    WORKLOAD = "workload"
    HOT_EXPERT = "hot-expert"
    ROUTER_COLLAPSE = "router-collapse"
    DEAD_EXPERT = "dead-expert"
    NAN_ACTIVATION = "nan-activation"
    NAN_GRADIENT = "nan-gradient"
    NAN_WEIGHT = "nan-weight"
    LOSS_SPIKE = "loss-spike"
    GRAD_SPIKE = "grad-spike"
    DIVERGENCE = "divergence"
    CHECKPOINT_DAMAGED = "checkpoint-damaged"
    CHECKPOINT_STALL = "checkpoint-stall"
    RESUME_MISMATCH = "resume-mismatch"
    MEMORY_LEAK = "memory-leak"
    UNOBSERVED = "unobserved"

    @property
    def spec(self) -> Spec:
        """What the fault is."""
        return SPECS[self]


SPECS: dict[Fault, Spec] = {
    Fault.KILL: Spec("the process gets SIGKILL", "rank_dead"),
    Fault.EXCEPTION: Spec("a RuntimeError leaves the main thread", "rank_dead"),
    Fault.EXIT: Spec("the process ends at once with the exit code `size`", "rank_dead", unit="exit code", size=3),
    Fault.OOM_SWALLOWED: Spec(
        "a MemoryError is caught, and the rank sleeps for `size`", "rank_not_joined", unit="s", size=3600
    ),
    Fault.FREEZE: Spec("the process gets SIGSTOP", "rank_frozen"),
    Fault.GIL: Spec("C code holds the GIL for `size`", "rank_frozen", unit="s", size=3600),
    Fault.HANG: Spec("sleeps for `size` before the all-reduce of the step", "rank_not_joined", unit="s", size=3600),
    Fault.SPIN: Spec("computes for `size` before the all-reduce of the step", "rank_not_joined", unit="s", size=3600),
    Fault.LOADER_HANG: Spec("the next batch comes after `size`", "rank_not_joined", unit="s", size=3600),
    Fault.DATA_EXHAUSTED: Spec("there is no batch, and the rank leaves the loop", "data_exhausted"),
    Fault.DEADLOCK_GROUPS: Spec(
        "it and the next rank use two groups in opposite order", "deadlock", needs=Needs.PEERS
    ),
    Fault.DEADLOCK_RECV: Spec("it and the next rank receive from each other", "deadlock", needs=Needs.PEERS),
    Fault.NETWORK_CUT: Spec(
        "what the process sends and receives is lost; no connection closes", "collective_stuck", needs=Needs.PEERS
    ),
    Fault.SHAPE_MISMATCH: Spec(
        "its part of an extra all-reduce has another shape", "collective_mismatch", needs=Needs.PEERS
    ),
    Fault.DTYPE_MISMATCH: Spec(
        "its part of an extra all-reduce has another dtype of the same width", "collective_mismatch", needs=Needs.PEERS
    ),
    Fault.REDUCE_OP_MISMATCH: Spec(
        "it reduces an extra all-reduce with MAX, the others with SUM", "collective_mismatch", needs=Needs.PEERS
    ),
    Fault.ROOT_MISMATCH: Spec(
        "it takes an extra broadcast from the next rank, the others from it", "collective_mismatch", needs=Needs.PEERS
    ),
    Fault.SPLIT_MISMATCH: Spec(
        "it sends the next rank a row more than that expects, in an extra all-to-all", "collective_mismatch",
        needs=Needs.PEERS,
    ),
    Fault.SKIPPED_CALL: Spec(
        "it leaves out one of the three all-reduces that all ranks add to each step", "collective_skipped", lasts=True,
        needs=Needs.PEERS,
    ),
    Fault.EXTRA_CALL: Spec(
        "it makes one more of the three all-reduces that all ranks add to each step", "collective_skipped", lasts=True,
        needs=Needs.PEERS,
    ),
    Fault.BITFLIP: Spec("one bit of one replicated weight flips", "replica_desync", needs=Needs.REPLICAS),
    Fault.STRAGGLER: Spec(
        "computes for `size` more in each forward", "straggler", unit="s", size=0.2, lasts=True, cause="compute",
        needs=Needs.PEERS,
    ),
    Fault.STRAGGLER_BACKWARD: Spec(
        "computes for `size` more in each backward", "straggler", unit="s", size=0.2, lasts=True, cause="compute",
        needs=Needs.PEERS,
    ),
    Fault.STRAGGLER_IDLE: Spec(
        "sleeps for `size` in each forward, as behind a slow device", "straggler", unit="s", size=0.2, lasts=True,
        cause="unknown", needs=Needs.PEERS,
    ),
    Fault.SLOW_INPUT: Spec(
        "each batch comes `size` later", "straggler", unit="s", size=0.2, lasts=True, cause="input", needs=Needs.PEERS
    ),
    Fault.INPUT_STALL: Spec("one batch comes `size` later", "input_stall", unit="s", size=5, cause="input"),
    Fault.PAUSE: Spec("sleeps once for `size` outside of any phase", "pause", unit="s", size=5),
    Fault.GC_PAUSES: Spec(
        "keeps `size` objects and collects garbage in every fourth step", "pause", unit="objects", size=4e6, lasts=True,
        cause="gc",
    ),
    Fault.GIL_THREAD: Spec(
        "`size` threads of Python fight for the GIL", "straggler", unit="threads", size=4, lasts=True, needs=Needs.PEERS
    ),
    Fault.OVERSUBSCRIBE: Spec(
        "every rank keeps `size` threads busy", "cpu_oversubscribed", Who.ALL, unit="threads", size=8, lasts=True
    ),
    Fault.SLOW_LINK: Spec(
        "what the process sends is paced to `size`", "slow_link", unit="bytes/s", size=5e4, lasts=True,
        needs=Needs.PEERS,
    ),
    Fault.SLOW_NETWORK: Spec(
        "what every process sends is paced to `size`", "slow_network", Who.ALL, unit="bytes/s", size=5e4, lasts=True,
        needs=Needs.PEERS,
    ),
    Fault.REGRESSION: Spec(
        "every rank computes for `size` more in each forward", "regression", Who.ALL, unit="s", size=0.5, lasts=True
    ),
    Fault.STAGE_IMBALANCE: Spec(
        "all ranks of its stage compute for `size` more in each forward", "stage_imbalance", Who.STAGE, unit="s",
        size=0.5, lasts=True, needs=Needs.PEERS,
    ),
    Fault.WORKLOAD: Spec(
        "in each step another rank computes for `size` more", "workload_imbalance", Who.TURNS, unit="s", size=0.5,
        lasts=True, needs=Needs.PEERS,
    ),
    Fault.HOT_EXPERT: Spec(
        "each token goes to the first expert of its ep rank, too; a row costs `size`", "expert_imbalance", Who.FAVOURED,
        unit="s", size=2e-4, lasts=True, needs=Needs.EXPERTS,
    ),
    Fault.ROUTER_COLLAPSE: Spec(
        "tokens go only to experts of its ep rank", "router_collapse", Who.FAVOURED, lasts=True, needs=Needs.EXPERTS
    ),
    Fault.DEAD_EXPERT: Spec(
        "routers never choose expert `size`", "dead_expert", Who.ALL, unit="expert", size=0, lasts=True
    ),
    Fault.NAN_ACTIVATION: Spec("the output of its first block becomes NaN in one step", "nonfinite"),
    Fault.NAN_GRADIENT: Spec("a gradient of the rank becomes NaN in one step", "nonfinite"),
    Fault.NAN_WEIGHT: Spec("a weight of the rank becomes NaN for good", "nonfinite"),
    Fault.LOSS_SPIKE: Spec(
        "all weights of the output are multiplied by `size` for one step", "loss_spike", Who.ALL, unit="factor", size=30
    ),
    Fault.GRAD_SPIKE: Spec(
        "all gradients are multiplied by `size` for one step", "grad_spike", Who.ALL, unit="factor", size=100
    ),
    Fault.DIVERGENCE: Spec(
        "the learning rate is multiplied by `size`", "divergence", Who.ALL, unit="factor", size=300, lasts=True
    ),
    Fault.CHECKPOINT_DAMAGED: Spec(
        "a file of the first checkpoint from `step` on is cut in half", "checkpoint_incomplete", Who.ALL,
        needs=Needs.CHECKPOINTS,
    ),
    Fault.CHECKPOINT_STALL: Spec(
        "writing the first checkpoint from `step` on takes `size` longer", "checkpoint_stall", unit="s", size=20,
        needs=Needs.CHECKPOINTS,
    ),
    Fault.RESUME_MISMATCH: Spec(
        "a resume forgets the moments of the optimizer and `size` steps of data", "resume_mismatch", Who.ALL,
        unit="steps", size=1, needs=Needs.RESUME,
    ),
    Fault.MEMORY_LEAK: Spec("keeps `size` more in each step", "memory_growth", unit="bytes", size=2e7, lasts=True),
    Fault.UNOBSERVED: Spec("detaches from ranksight", "incomplete_data"),
}  # fmt: skip


def markdown() -> str:
    """The table of docs/faults.md."""
    lines = ["| fault | strikes | does | size (default) | lasts | finding |", "|---|---|---|---|---|---|"]
    for fault in Fault:
        spec = fault.spec
        size = f"{spec.unit} ({spec.size:g})" if spec.unit else ""
        finding = f"`{spec.finding}`" + (f", cause `{spec.cause}`" if spec.cause else "")
        lines.append(
            f"| `{fault.value}` | {spec.who} | {spec.does} | {size} | {'to the end' if spec.lasts else 'once'} | {finding} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(markdown(), end="")
