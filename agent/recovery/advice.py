"""What to change before a job goes on, by the kind of the fault. A table, so that it can be argued about."""

from __future__ import annotations

CHANGES: dict[str, str] = {
    "rank_dead": "Nothing, if the process was killed from outside; else mend the exception that the finding names.",
    "rank_frozen": "Leave out the host of the frozen rank if it freezes again.",
    "rank_not_joined": "Mend the branch that lets the named rank pass the collective by, or the call that it hangs in.",
    "collective_stuck": "Check the network between the ranks of the group; leave out a host that takes part each time.",
    "deadlock": "Make all ranks use their groups in one order.",
    "data_exhausted": "Give all ranks the same number of batches (drop_last, or a sampler that pads).",
    "collective_mismatch": "Make the ranks call the collective with the same shape, dtype and reduction.",
    "collective_skipped": "Call the collective on all ranks or on none.",
    "replica_desync": "Check the memory of the device of the named rank; leave its host out if it happens again.",
    "straggler": "Leave out the host of the slow rank, or free it from other work.",
    "pause": "Call gc.freeze() after the start, or move what pauses the rank out of the step.",
    "input_stall": "More data workers, or faster storage.",
    "slow_link": "Leave out the host whose links are slow, or check its cable and network interface.",
    "regression": "Compare with an earlier run (ranksight compare): what changed in the code, the data or the host.",
    "slow_network": "Check the network and what else uses it; larger buckets and fewer collectives need less of it.",
    "cpu_oversubscribed": "Fewer threads a rank (OMP_NUM_THREADS), or fewer ranks on the host.",
    "stage_imbalance": "Move layers from the slow pipeline stage to others.",
    "workload_imbalance": "Balance the work of a batch between ranks, by tokens rather than by samples.",
    "expert_imbalance": "Raise the weight of the balancing loss or the rate of the bias.",
    "dead_expert": "Raise the weight of the balancing loss or the rate of the bias, or start the expert anew from a busy one.",
    "router_collapse": "Go back and raise the weight of the balancing loss; lower the learning rate of the router.",
    "nonfinite": "Skip the batch of that step; if it comes back, halve the learning rate or clip gradients harder.",
    "loss_spike": "Skip the batch of that step, or go on with half the learning rate for a while.",
    "grad_spike": "Clip gradients harder, or skip the batch of that step.",
    "divergence": "Go on with half the learning rate.",
    "checkpoint_incomplete": "Write the next checkpoint to storage with enough room; do not resume from this one.",
    "checkpoint_stall": "Check the storage that checkpoints go to; write them in the background.",
    "resume_mismatch": "Load the checkpoint that the command names, with its data cursor.",
    "incomplete_data": "Look at completeness in the report and at agent.log; give the agent CPU time.",
    "memory_growth": "Drop what keeps tensors of past steps; a smaller batch only puts the end off.",
}
# Another host may well do better.
BY_HOST = frozenset({"rank_frozen", "collective_stuck", "replica_desync", "straggler", "slow_link"})


def change(kind: str) -> str:
    """One or two sentences."""
    return CHANGES.get(kind, "Nothing is known to help.")
