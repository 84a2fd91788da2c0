"""CPU threads and networks: how many one runs on, how many passes of it side by side, who may load one."""

import threading
from typing import Any

SMALL = 50_000_000
"""Parameters below which a second CPU thread for the same operation costs more than it brings."""
LOADING = threading.Lock()
"""Held while transformers imports and loads: it can't do either for two threads at once."""
_setting = threading.Lock()


def threads_for(network: Any) -> int | None:
    """CPU threads that a network's operations are best run on; None for torch's own choice."""
    return 1 if network.device.type == "cpu" and network.num_parameters() < SMALL else None


def share_threads(network: Any, passes: int, threads: int) -> tuple[int, int | None]:
    """How many of a network's passes, which don't wait for each other, to run side by side, and on how many
    of the CPU threads each; None is its own choice. A thread a pass brings more than threads that share one.
    """
    if network.device.type != "cpu":
        return 1, None
    workers = max(1, min(threads, passes))
    return workers, threads_for(network) or threads // workers


def limit_threads(count: int) -> None:
    """Run this thread's operations on `count` CPU threads.

    torch keeps the number per thread, but new threads start with what was set last: put that back.
    """
    import torch

    with _setting:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        restore = threading.Thread(target=torch.set_num_threads, args=(before,))
        restore.start()
        restore.join()
