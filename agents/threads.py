"""CPU threads and networks: how many one runs on, how many passes of it side by side, who may load one."""

import threading
from typing import Any

SMALL = 50_000_000
"""Parameters below which a second CPU thread for the same operation costs more than it brings."""
LOADING = threading.Lock()
"""Held while a checkpoint is loaded: transformers can't load two at once, their weights would stay empty."""
_setting = threading.Lock()


def threads_for(network: Any) -> int | None:
    """CPU threads that a network's operations are best run on; None for torch's own choice."""
    return 1 if network.device.type == "cpu" and network.num_parameters() < SMALL else None


def workers_for(network: Any) -> int:
    """Passes of a network to run side by side: one for each CPU thread where each is best run on one."""
    import torch

    return 1 if threads_for(network) is None else torch.get_num_threads()


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
