"""What runs inside a rank. Needs only the standard library and the torch that is there.

`ranksight run -- torchrun ... train.py` attaches a script that knows nothing of this. A trainer may say more:

    from ranksight import hooks
    with hooks.phase("data"): ...                 # what no hook can see
    hooks.record_step(loss=loss, grad_norm=norm)  # where a step ends; without it the optimizer tells
    if hooks.stop_requested() is not None: ...    # the step after which all ranks leave

Without an attachment every call does nothing and costs next to nothing; with one, none of them raises.
"""

from ranksight.hooks.api import (
    attach,
    checkpoint_wanted,
    clean_steps,
    detach,
    name_axis,
    on_stop,
    phase,
    record_batch,
    record_experts,
    record_fact,
    record_step,
    stop_requested,
    update_allowed,
)

__all__ = [
    "attach",
    "checkpoint_wanted",
    "clean_steps",
    "detach",
    "name_axis",
    "on_stop",
    "phase",
    "record_batch",
    "record_experts",
    "record_fact",
    "record_step",
    "stop_requested",
    "update_allowed",
]
