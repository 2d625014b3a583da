"""Instructions per collective with each tap, counted by valgrind: exact where times drown in the noise of a machine.

    python tests/bench/call_instructions.py [--calls 1000] [--modes bare removed native sampled python]

Needs valgrind with its headers and a C compiler. Runs this script once per mode under callgrind on torch's fake backend;
only the measured calls are instrumented. A minute each.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

SWITCH = """
#include <valgrind/callgrind.h>
void on(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void off(void) { CALLGRIND_DUMP_STATS; CALLGRIND_STOP_INSTRUMENTATION; }
"""
MODES = ("bare", "removed", "native", "sampled", "python")


def main() -> None:
    """Count in every mode and print the difference to `bare`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--inside", nargs=2, metavar=("MODE", "SWITCH"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        mode, library = arguments.inside
        measure(mode, library, arguments.calls)
        return
    bare = None
    with tempfile.TemporaryDirectory() as folder:
        switch = Path(folder, "switch.so")
        Path(folder, "switch.c").write_text(SWITCH)
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", switch, Path(folder, "switch.c")], check=True)
        for mode in arguments.modes:
            count = counted(mode, switch, arguments.calls)
            bare = bare or count
            print(f"{mode:8} {count:12.1f} instructions a call  {count - bare:+12.1f}", flush=True)


def counted(mode: str, switch: Path, calls: int) -> float:
    """Instructions per call of one mode, in a process of its own."""
    command = [
        "valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={switch.parent}/{mode}.out",
        sys.executable, __file__, "--calls", str(calls), "--inside", mode, str(switch),
    ]  # fmt: skip
    # Valgrind does not know the newest vector instructions.
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found, done.stderr
    return int(found[1]) / calls


def measure(mode: str, switch: str, calls: int) -> None:
    """The calls, in a process under valgrind."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from ranksight.hooks import ring as rings
    from ranksight.hooks import tap, wire

    library = ctypes.CDLL(switch)
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    tensor = torch.ones(64)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        if mode != "bare":
            handle = tap.install(rings.create(Path(folder)), "python" if mode == "python" else "native")
            if mode == "sampled":
                handle.set_detail(wire.Detail.SAMPLED)
            if mode == "removed":
                handle.remove()
        for _ in range(50):
            dist.all_reduce(tensor)
        library.on()
        for _ in range(calls):
            dist.all_reduce(tensor)
        library.off()
    os._exit(0)


if __name__ == "__main__":
    main()
