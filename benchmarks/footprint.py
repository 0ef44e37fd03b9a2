"""Measure how long a server takes to be ready, the memory that it holds, and the CPU that it uses while idle.

python benchmarks/footprint.py --idle-s 10 --save footprint -- --kv-cache-memory-bytes 1GiB
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from saving import add_option, save
from server_process import running_server


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process and its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS:"))) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle-s", type=float, default=10.0)
    add_option(parser)
    parser.add_argument("options", nargs="*", help="options of the server, after --")
    chosen = parser.parse_args()
    with running_server(chosen.options) as server:
        after_start = resident_mib(server.pid)
        load = [sys.executable, "-m", "hotseat", "bench", "serve", "--url", server.url]
        subprocess.run([*load, "--num-prompts", "64", "--max-concurrency", "32"], check=True, stdout=sys.stderr)
        after_load = resident_mib(server.pid)
        before = cpu_seconds(server.pid)
        time.sleep(chosen.idle_s)
        idle = (cpu_seconds(server.pid) - before) / chosen.idle_s
    measured = {
        "ready_s": server.ready_s,
        "resident_after_start_mib": after_start,
        "resident_after_load_mib": after_load,
        "idle_cores": idle,
    }
    for name, value in measured.items():
        sys.stdout.write(f"{name:26}{value:8.2f}\n")
    if chosen.save:
        save(chosen.save, chosen, measured=measured)


if __name__ == "__main__":
    main()
