"""A server's prompt log-probs: the same numbers as the local checkpoint's, and clear errors."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from turnbench.agents import readers  # noqa: E402
from turnbench.agents.readers import LocalReader, open_reader  # noqa: E402
from turnbench.agents.spans import fit  # noqa: E402
from turnbench.envs.errors import ConfigError, ModelError, Unanswered  # noqa: E402

PAIRS = [((5, 6, 7), (8, 9)), ((5, 6, 7, 8, 9, 10), (11,)), ((20, 21), (22, 23, 24))]


@pytest.fixture(scope="module")
def local(checkpoint):
    reader = LocalReader(checkpoint)
    yield reader
    reader.close()


def as_vllm(network, body):
    """A reply in vLLM's form: for each token of the prompt the likeliest and itself, by id.

    A prompt that fills the context, so that nothing can be added, is refused."""
    ids, count = body["prompt"], body["prompt_logprobs"]
    if len(ids) + body["max_tokens"] > network.config.max_position_embeddings:
        return {"status": 400, "body": {"error": "max_tokens must be at least 1, got 0."}}
    with torch.inference_mode():
        logprobs = network(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
    rows = [None]
    for place, token in enumerate(ids[1:]):
        best = logprobs[place].topk(count).indices.tolist()
        rows.append({str(k): {"logprob": float(logprobs[place, k]), "rank": 1} for k in {*best, token}})
    return {"body": {"choices": [{"index": 0, "text": "x", "prompt_logprobs": rows}]}}


def remote(server, checkpoint, **options):
    spec = {"backend": "api", "model": "m", "base_url": server.url, "tokenizer": checkpoint, **options}
    return open_reader(spec)


def test_the_server_and_the_checkpoint_agree(server, checkpoint, local) -> None:
    network = local._worker._decoder.network
    server.play = lambda body: as_vllm(network, body)
    reader = remote(server, checkpoint)
    for mine, theirs in zip(local.measure(PAIRS, ["top"]), reader.measure(PAIRS, ["top"]), strict=True):
        np.testing.assert_allclose(mine["logprob"], theirs["logprob"], atol=1e-3)
        np.testing.assert_allclose(mine["top"], theirs["top"], atol=1e-3)
    reader.close()
    assert sorted(len(body["prompt"]) for body in server.bodies) == [5, 7]  # nested turns are sent once
    assert {body["max_tokens"] for body in server.bodies} == {1}


def test_a_path_as_long_as_the_context_is_cut_to_what_the_server_takes(server, checkpoint, local):
    network = local._worker._decoder.network
    server.play = lambda body: as_vllm(network, body)
    whole = [(tuple(k % 300 for k in range(local.context - 2)), (8, 9))]
    reader = remote(server, checkpoint, context=local.context)
    (pair,), cut = fit(whole, reader.context)
    (theirs,), (mine,) = reader.measure([pair]), local.measure([pair])
    reader.close()
    assert cut == 1 and pair[1] == (8, 9)
    np.testing.assert_allclose(mine["logprob"], theirs["logprob"], atol=1e-3)


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ({"body": {"choices": [{"text": "x"}]}}, "gives no log-probs of a prompt"),
        ({"body": {"choices": [{"prompt_logprobs": [None, {}]}]}}, "gives no log-probs of a prompt"),
        ({"body": {"choices": [{"prompt_logprobs": [None] + [{"1": {"logprob": 0}}] * 6}]}}, "damaged"),
        ({"body": {"choices": []}}, "no choices"),
        ({"status": 404, "body": {"error": "no such model"}}, "answered 404"),
    ],
)
def test_servers_that_dont_give_them_are_named(server, checkpoint, reply, why) -> None:
    server.play = [reply]
    reader = remote(server, checkpoint)
    with pytest.raises(ModelError, match=why):
        reader.measure(PAIRS[1:2])
    reader.close()


def test_a_busy_server_is_asked_again(server, checkpoint, local, monkeypatch) -> None:
    monkeypatch.setattr(readers, "pause", lambda tries, after, jitter: 0.0)
    network, busy = local._worker._decoder.network, [503, 429]
    server.play = lambda body: {"status": busy.pop(), "body": {}} if busy else as_vllm(network, body)
    reader = remote(server, checkpoint)
    (found,) = reader.measure(PAIRS[2:])
    np.testing.assert_allclose(found["logprob"], local.measure(PAIRS[2:])[0]["logprob"], atol=1e-3)
    assert len(server.bodies) == 3
    server.play = [{"status": 503, "body": {"error": "later"}}]
    with pytest.raises(Unanswered, match=r"answered 503: .*later.* \(asked 5 times\)"):
        reader.measure(PAIRS[2:])
    assert len(server.bodies) == 8
    reader.close()
    away = remote(server, checkpoint, base_url="http://127.0.0.1:9/v1", max_retries=0)
    with pytest.raises(Unanswered, match="no answer from http://127.0.0.1:9"):
        away.measure(PAIRS[2:])
    away.close()


def test_the_context_is_what_the_server_lists(server, checkpoint) -> None:
    assert remote(server, checkpoint).context is None
    server.models = [{"id": "other", "max_model_len": 9}, {"id": "m", "max_model_len": 512}]
    assert remote(server, checkpoint).context == 511
    assert remote(server, checkpoint, context=64).context == 63
    server.models = [{"id": "m"}]
    assert remote(server, checkpoint).context is None and not server.bodies


def test_keys_stay_out_of_errors(server, checkpoint, monkeypatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-secret-9876543210")
    server.play = [{"status": 400, "body": {"error": "bad key sk-secret-9876543210"}}]
    reader = remote(server, checkpoint, api_key_env="SOME_KEY")
    with pytest.raises(ModelError) as error:
        reader.measure(PAIRS[:1])
    reader.close()
    assert "sk-secret" not in str(error.value) and "[key]" in str(error.value)
    assert any("sk-secret" in head for head in server.headers)


def test_what_a_server_cant_give_is_refused(server, checkpoint) -> None:
    reader = remote(server, checkpoint)
    with pytest.raises(ConfigError, match="whole distributions"):
        reader.measure(PAIRS, ["entropy"])
    with pytest.raises(ModelError, match="outside the vocabulary"):
        reader.measure([((1,), (10**6,))])
    reader.close()
    with pytest.raises(ConfigError, match="needs the option 'tokenizer'"):
        open_reader({"backend": "api", "model": "m"})
    assert not server.bodies
