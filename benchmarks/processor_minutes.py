"""`vitrail` with a clock of processor time: a run's minutes are those that its one core worked for it.

    OMP_NUM_THREADS=1 taskset -c 0 python benchmarks/processor_minutes.py train DATA --minutes 10 ...

On an idle machine these are ordinary minutes. On a busy one a run takes longer but does the same work, so that long
comparisons at equal time stay fair whatever else runs beside them.
"""

from __future__ import annotations

import concurrent.futures  # noqa: F401 - what waits for threads and processes must have the ordinary clock by now
import queue  # noqa: F401
import selectors  # noqa: F401
import subprocess  # noqa: F401
import threading  # noqa: F401
import time

time.monotonic = time.perf_counter = time.process_time


def main() -> None:
    """Run the command line; the process's clock starts at zero."""
    from vitrail import __main__ as command_line
    from vitrail.training import clock

    clock.process_start = lambda: 0.0
    command_line.main()


if __name__ == "__main__":
    main()
