"""The reference trainer: data, tensor, pipeline and expert parallel in one job, from torch's own parts.

    torchrun --standalone --nproc-per-node 8 -m ranksight.trainer --pp 2 --dp 2 --tp 2 --ep 4 --steps 40

Files, in the order to read them: config (what can be asked for), options (command line and TOML), corpus, model, moe,
router (one rank's view), meshes, parallelize, pipeline (many ranks), stats (the one all-reduce), manifest, checkpoint,
observe (what ranksight is told), stop, train (the loop).
"""
