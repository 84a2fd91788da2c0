"""What bounds a replay."""

import subprocess
import sys

CODE = """
from turnbench.leaderboards.replay import MEMORY, _begin
_begin("[]")
small = bytearray(2**20)
try:
    bytearray(MEMORY)
except MemoryError:
    print("refused")
"""


def test_a_worker_has_a_bound_on_memory() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120)
    assert done.stdout == "refused\n", done.stderr
