"""TensorBoard's files say what metrics.jsonl says, each step once."""

import json
import struct

import pytest

from turnbench.algorithms.progress import Progress

event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")


def drawn(folder):
    """[(tag, step, value)] of all event files of a folder, in the order they were written."""
    found = []
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            event = event_pb2.Event.FromString(data[12 : 12 + size])
            found += [(v.tag, event.step, v.simple_value) for v in event.summary.value]
            data = data[16 + size :]
    return found


def test_a_resumed_run_draws_each_step_once(tmp_path):
    with Progress(tmp_path, 0, 4, main=True) as progress:
        for step in (1, 2, 3):
            progress.row(step, reward=step / 2, kl=0.25)
    with Progress(tmp_path, 2, 4, main=True) as progress:
        progress.row(3, reward=9.0, kl=0.5)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()]
    told = [(name, r["step"], r[name]) for r in rows for name in ("reward", "kl")]
    assert drawn(tmp_path / "tensorboard") == told
    assert [step for tag, step, _ in told if tag == "kl"] == [1, 2, 3]


def test_only_the_main_process_draws(tmp_path):
    with Progress(tmp_path, 0, 4, main=False) as progress:
        progress.row(1, reward=1.0)
    assert not list(tmp_path.iterdir())
