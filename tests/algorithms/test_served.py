"""A policy sampled by a server learns what one sampled in the process does. The server is a stand-in on the
loopback that speaks vLLM's requests and draws with the weights that it last read from its folder."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from turnbench.agents.hf import HfModel
from turnbench.agents.lanes import Row
from turnbench.agents.model import Sampling
from turnbench.algorithms import trainer
from turnbench.envs.errors import ModelError

RESET = "/reset_prefix_cache?reset_running_requests=true"


class StandIn:
    """`broken` are the numbers of completions, from 1, that lack their token ids; `held`, whether the prefix
    cache can't be emptied. As vLLM does, it takes what isn't sent from the model's own wishes: top_k 1."""

    def __init__(self, folder, dev=True, broken=(), held=False):
        self.folder, self.dev, self.broken, self.held = folder, dev, broken, held
        self.model, self.orders, self.asked, self.lock = None, [], 0, threading.Lock()

    def reply(self, path, body):
        if path != "/v1/completions":
            self.orders.append((path, body))
            if self.dev and path == "/collective_rpc":
                self.model = HfModel(str(self.folder))
                return 200, {"results": [None]}
            return (200, {"success": not self.held}) if self.dev else (404, {})
        with self.lock:
            self.asked += 1
            number = self.asked
        temperature = 0 if body.get("top_k", 1) == 1 else body["temperature"]
        sampling = Sampling(temperature, body["top_p"], body["max_tokens"])
        draws = np.random.default_rng(body["seed"]).random(body["max_tokens"])
        row = Row(tuple(body["prompt"]), sampling, body["max_tokens"], draws)
        self.model._worker.submit([row])
        done = row.done.result()
        said = {"token_ids": done.ids, "logprobs": {"token_logprobs": [float(x) for x in done.logprobs]}}
        if number in self.broken:
            del said["token_ids"]
        return 200, {"choices": [said]}


@pytest.fixture
def serve():
    started = []

    def start(stand_in):
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                status, answer = stand_in.reply(self.path, body)
                data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args):
                pass

        started.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=started[-1].serve_forever).start()
        return f"http://127.0.0.1:{started[-1].server_port}"

    yield start
    for server in started:
        server.shutdown()
        server.server_close()


@pytest.fixture
def config(tiny_folder, worlds):
    return {
        "model": tiny_folder,
        "env": {"id": "letter_worlds:Letters-v0"},
        "play": {"max_tokens": 4, "instructions": False},
        "steps": 2,
        "tasks": 2,
        "group": 3,
        "lr": 1e-3,
    }


def test_a_served_policy_learns_what_one_in_the_process_does(config, serve, tmp_path):
    stand_in = StandIn(tmp_path / "served")
    server = {"url": serve(stand_in), "folder": str(tmp_path / "served"), "max_in_flight": 4}
    away = trainer("mpo")(config | {"server": server}, tmp_path / "away")
    here = trainer("mpo")(config, tmp_path / "here")
    one, two = (
        AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32).state_dict() for f in (away, here)
    )
    assert all(torch.allclose(one[k], two[k], rtol=0, atol=2e-5) for k in one)
    each = [("/collective_rpc", {"method": "reload_weights"}), (RESET, {})]
    assert stand_in.orders == each * 2 and stand_in.asked == 2 * 6 * 3


def test_an_answer_without_ids_is_one_failed_episode(config, serve, tmp_path):
    stand_in = StandIn(tmp_path / "served", broken={2})
    server = {"url": serve(stand_in), "folder": str(tmp_path / "served")}
    trainer("grpo")(config | {"server": server}, tmp_path / "run")
    lines = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["failed"] for line in lines] == [1.0, 0.0]


def test_a_server_that_reads_no_weights_stops_the_run_with_advice(config, serve, tmp_path):
    server = {"url": serve(StandIn(None, dev=False)), "folder": str(tmp_path / "served")}
    with pytest.raises(ModelError, match="collective_rpc.*404.*VLLM_SERVER_DEV_MODE=1"):
        trainer("grpo")(config | {"server": server}, tmp_path / "run")


def test_a_server_that_keeps_what_old_weights_computed_stops_the_run(config, serve, tmp_path):
    stand_in = StandIn(tmp_path / "served", held=True)
    server = {"url": serve(stand_in), "folder": str(tmp_path / "served")}
    with pytest.raises(ModelError, match="keeps what the old weights computed"):
        trainer("grpo")(config | {"server": server}, tmp_path / "run")
