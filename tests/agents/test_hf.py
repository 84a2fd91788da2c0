import gc
import logging
import shutil
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from turnbench.agents import shipped_path  # noqa: E402
from turnbench.agents.hf import HfModel, load_checkpoint, load_classifier  # noqa: E402
from turnbench.agents.model import Completion, Message, Prompt, Sampling  # noqa: E402
from turnbench.envs.errors import ModelError  # noqa: E402
from turnbench.envs.record import Failure, Outcome  # noqa: E402

torch.set_num_threads(1)

PLAIN = {"llama": {}, "qwen3": {}, "qwen2": {"head_dim": 8}, "gpt_neox": {}}
PADDED = {"mistral": {"sliding_window": 20}, "gemma3_text": {"sliding_window": 20}}
MIXED = [
    Sampling(max_tokens=12),
    Sampling(temperature=0.7, max_tokens=9),
    Sampling(top_p=0.8, max_tokens=14),
    Sampling(temperature=0, max_tokens=7),
    Sampling(temperature=1.3, top_p=0.95, max_tokens=5, stop=("e", "oak")),
]


def ask(text, seed=0):
    return Prompt((Message("user", text),), seed)


def questions(count):
    """Prompts of very different lengths."""
    words = "craft 4 stick using 2 oak planks get 1 oak log inventory".split()
    return [ask(" ".join(words[k % 7 :] * (1 + k * k % 11)), seed=k) for k in range(count)]


def workers():
    return sum(thread.name == "turnbench-hf" for thread in threading.enumerate())


def same(left, right, tolerance=1e-4):
    assert [a.ids for a in left] == [b.ids for b in right]
    assert [a.text for a in left] == [b.text for b in right]
    assert [a.finish for a in left] == [b.finish for b in right]
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=tolerance, rtol=0)


def exact(model, answer):
    """The sampled ids' log-probs by one forward pass over the whole sequence."""
    whole = torch.tensor([answer.prompt_ids + answer.ids])
    with torch.inference_mode():
        logprobs = model.network(whole).logits[0].double().log_softmax(-1)
    start = len(answer.prompt_ids)
    return [float(logprobs[start + k - 1, token]) for k, token in enumerate(answer.ids)]


def talk(model, seed, turns=5, sampling=None, edit=lambda text: text):
    """A conversation in which every prompt extends what was sampled before."""
    messages, context, answers = [Message("user", "Goal: craft stick." * 3)], (), []
    for turn in range(turns):
        covered = len(messages) - 1 if context else 0
        prompt = Prompt(tuple(messages), seed * 100 + turn, context, covered)
        answer = model.generate([prompt], sampling or Sampling(max_tokens=15))[0]
        context = answer.prompt_ids + answer.ids
        answers.append(answer)
        said = Message("user", f"Inventory: [oak planks] ({turn})")
        messages += [Message("assistant", edit(answer.text)), said]
    return answers


@pytest.fixture(scope="module")
def model(checkpoint):
    built = HfModel(checkpoint, sampling=Sampling(max_tokens=16))
    yield built
    built.close()


@pytest.fixture(scope="module", params=[*PLAIN, *PADDED])
def any_model(request, make_checkpoint):
    built = HfModel(make_checkpoint(kind=request.param, **(PLAIN | PADDED)[request.param]))
    assert built._worker._decoder.lanes.joins == (request.param in PLAIN)
    yield built
    built.close()


# --- what a completion depends on -----------------------------------------------------------------


def test_a_sample_does_not_depend_on_its_company(any_model):
    prompts = questions(64)
    together = any_model.generate(prompts, Sampling(max_tokens=12))
    same([any_model.generate([p], Sampling(max_tokens=12))[0] for p in prompts], together)
    order = np.random.default_rng(0).permutation(64)
    shuffled = any_model.generate([prompts[k] for k in order], Sampling(max_tokens=12))
    same(shuffled, [together[k] for k in order])
    assert len({a.ids for a in together}) > 50  # and they are samples


def test_different_sampling_from_many_threads(any_model):
    prompts = questions(40)
    wanted = [any_model.generate([p], MIXED[k % 5])[0] for k, p in enumerate(prompts)]
    found = [None] * len(prompts)

    def work(start):
        for k in range(start, len(prompts), 8):
            found[k] = any_model.generate([prompts[k]], MIXED[k % 5])[0]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same(found, wanted)


def test_more_prompts_than_lanes(checkpoint, model):
    small = HfModel(checkpoint, max_batch=3, cache_bytes=0)
    prompts = questions(20)
    same(small.generate(prompts, MIXED[2]), model.generate(prompts, MIXED[2]))
    small.close()


def test_logprobs_are_those_of_one_forward_pass(any_model):
    for sampling in MIXED:
        for answer in any_model.generate(questions(8), sampling):
            np.testing.assert_allclose(answer.logprobs, exact(any_model, answer), atol=1e-4, rtol=0)


def test_greedy_takes_the_most_probable_token(model):
    answer = model.generate([ask("inventory")], Sampling(temperature=0, max_tokens=8))[0]
    with torch.inference_mode():
        logits = model.network(torch.tensor([answer.prompt_ids + answer.ids])).logits[0]
    start = len(answer.prompt_ids) - 1
    assert answer.ids == tuple(logits.argmax(-1)[start : start + len(answer.ids)].tolist())


# --- turns, and the reuse of what they computed ---------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "qwen3", "mistral"])
def test_turns_with_and_without_reuse_agree(kind, make_checkpoint):
    folder = make_checkpoint(kind=kind, **(PLAIN | PADDED).get(kind, {}))
    reusing, plain = HfModel(folder), HfModel(folder, cache_bytes=0)
    for seed in range(4):
        left, right = talk(reusing, seed), talk(plain, seed)
        same(left, right)
        for before, after in pairwise(left):
            context = before.prompt_ids + before.ids
            assert after.prompt_ids[: len(context)] == context
            assert after.usage.cached_tokens == (len(context) - 1 if kind in PLAIN else 0)
        assert not any(answer.usage.cached_tokens for answer in right)
        for answer in left:
            np.testing.assert_allclose(answer.logprobs, exact(reusing, answer), atol=1e-4, rtol=0)
    reusing.close()
    plain.close()


def test_conversations_in_threads_equal_conversations_alone(checkpoint, model):
    busy = HfModel(checkpoint, max_batch=5, cache_bytes=200_000)  # some states are evicted
    found = {}
    threads = [threading.Thread(target=lambda s=s: found.update({s: talk(busy, s)})) for s in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    busy.close()
    for seed in range(10):
        same(found[seed], talk(model, seed))


def test_a_fork_reuses_the_same_context(checkpoint):
    model = HfModel(checkpoint)
    answers = talk(model, 7, turns=2)
    first = answers[0]
    context = first.prompt_ids + first.ids
    messages = (
        Message("user", "Goal: craft stick." * 3),
        Message("assistant", first.text),
        Message("user", "Inventory: [oak planks] (0)"),
    )
    twins = [Prompt(messages, seed, context, 2) for seed in (701, 5, 701)]
    forks = model.generate(twins, Sampling(max_tokens=15))
    same([forks[0], forks[2]], [answers[1], answers[1]])
    assert forks[1].ids != forks[0].ids
    assert all(len(f.prompt_ids) - 1 == f.usage.cached_tokens for f in forks)
    model.close()


def test_usage_counts_tokens(model):
    answer = model.generate([ask("get 2 oak log")])[0]
    usage = answer.usage
    assert (usage.model_calls, usage.cost) == (1, 0.0)
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(answer.prompt_ids), len(answer.ids))


# --- ends, stops and the context ------------------------------------------------------------------


def test_a_completion_ends_at_the_end_of_turn(model):
    answers = model.generate([ask("inventory", seed) for seed in range(200)], Sampling(max_tokens=40))
    ended = [a for a in answers if a.finish == "stop"]
    assert ended and len(ended) < len(answers)
    for answer in answers:
        stopped = answer.ids[-1] == 2
        assert stopped == (answer.finish == "stop") and 2 not in answer.ids[:-1]
        assert "<|end|>" not in answer.text and len(answer.logprobs) == len(answer.ids)
        assert answer.text == model.chat.text(answer.ids[:-1] if stopped else answer.ids)
        assert stopped or len(answer.ids) == 40


def test_stop_strings_cut_the_text_and_keep_the_ids(model):
    free = model.generate(questions(30), Sampling(max_tokens=30))
    stop = ("oak", "s", "�")
    cut = model.generate(questions(30), Sampling(max_tokens=30, stop=stop))
    stopped = 0
    for whole, part in zip(free, cut, strict=True):
        assert part.ids == whole.ids[: len(part.ids)]
        assert not any(s in part.text for s in stop) and whole.text.startswith(part.text)
        if len(part.ids) < len(whole.ids):
            stopped += 1
            assert part.finish == "stop" and any(s in model.chat.text(part.ids) for s in stop)
    assert stopped > 5


def test_a_prompt_that_is_too_long_is_a_failure_and_no_warning(make_checkpoint, caplog, monkeypatch):
    model = HfModel(make_checkpoint(context=64))
    model.chat.tokenizer.model_max_length = 64
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    (found,) = model.generate([ask("x" * 100)])
    assert isinstance(found, Failure) and found.outcome is Outcome.TRUNCATED
    assert not caplog.records
    model.close()


def test_the_context_bounds_the_completion_and_is_never_cut(make_checkpoint):
    model = HfModel(make_checkpoint(context=64))
    lengths = {n: len(model.chat.encode(ask("x" * n))) for n in range(30, 80)}
    exactly, nearly, beyond = (
        next(n for n, length in lengths.items() if length == wanted) for wanted in (64, 61, 70)
    )
    found = model.generate([ask("x" * n) for n in (exactly, nearly, beyond, 30)], MIXED[0])
    assert isinstance(found[0], Failure) and found[0].outcome is Outcome.TRUNCATED
    assert "64 tokens" in found[0].message
    assert found[1].finish == "stop" or len(found[1].ids) == 3
    assert isinstance(found[2], Failure) and isinstance(found[3], Completion)
    model.close()


# --- faults ---------------------------------------------------------------------------------------


def test_one_bad_prompt_leaves_the_others_alone(model, monkeypatch):
    wanted = model.generate(questions(12))
    forward = type(model.network).forward
    (marked,) = model.chat.tokens("\x07")

    def faulty(self, input_ids, **kwargs):
        if (input_ids == marked).any():
            raise RuntimeError("this token burns")
        return forward(self, input_ids, **kwargs)

    clean = [k for k, a in enumerate(wanted) if marked not in a.ids]
    monkeypatch.setattr(type(model.network), "forward", faulty)
    found = model.generate([*questions(12), ask("\x07 bell")])
    assert isinstance(found[-1], Failure) and found[-1].outcome is Outcome.INFRA_ERROR
    assert "this token burns" in found[-1].message
    assert len(clean) > 6
    same([found[k] for k in clean], [wanted[k] for k in clean])


def test_a_batch_that_does_not_fit_is_halved(model, monkeypatch):
    wanted = model.generate(questions(13))
    forward, sizes = type(model.network).forward, []

    def narrow(self, input_ids, **kwargs):
        sizes.append(len(input_ids))
        if len(input_ids) > 4:
            raise torch.OutOfMemoryError("out of memory")
        return forward(self, input_ids, **kwargs)

    monkeypatch.setattr(type(model.network), "forward", narrow)
    same(model.generate(questions(13)), wanted)
    assert max(sizes) > 4


def test_probabilities_that_are_no_numbers_are_a_failure(make_checkpoint):
    model = HfModel(make_checkpoint(tie_word_embeddings=False))
    (token,) = model.chat.tokens("\x07")
    prompts = [ask("\x07" * 30, 1), *questions(6), ask("\x07", 2), *questions(6)]
    model.network.get_input_embeddings().weight[token] = float("nan")
    sampling = Sampling(max_tokens=16)
    found = model.generate(prompts, sampling)
    for answer in (found[0], found[7]):
        assert isinstance(answer, Failure) and answer.outcome is Outcome.INFRA_ERROR
    for _ in range(2):  # what failed has left nothing behind, in the store or in a lane
        again = model.generate(questions(14), sampling)
        finite = [k for k, a in enumerate(again) if isinstance(a, Completion)]
        assert len(finite) > 7
        for k in finite:
            np.testing.assert_allclose(again[k].logprobs, exact(model, again[k]), atol=1e-4, rtol=0)
    model.close()


def test_close_ends_the_thread_and_refuses_further_work(checkpoint):
    before = workers()
    model = HfModel(checkpoint)
    assert workers() == before + 1
    model.generate(questions(2))
    model.close()
    model.close()
    assert workers() == before
    with pytest.raises(ModelError, match="closed"):
        model.generate([ask("a")])
    with pytest.raises(ModelError, match="closed"):
        model.logprobs([((1,), (2,))])


def test_close_answers_what_still_waits(checkpoint):
    model, found = HfModel(checkpoint, max_batch=1), []
    sampling = Sampling(max_tokens=1000)
    asking = threading.Thread(target=lambda: found.extend(model.generate(questions(30), sampling)))
    asking.start()
    while not model._worker._decoder.live:
        pass
    model.close()
    asking.join()
    assert len(found) == 30 and isinstance(found[-1], Failure) and "closed" in found[-1].message


def test_a_forgotten_model_leaves_no_thread(checkpoint):
    before = workers()
    model = HfModel(checkpoint)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None and workers() == before


def test_torch_threads_of_others_are_left_alone(checkpoint):
    seen = []
    torch.set_num_threads(2)
    try:
        model = HfModel(checkpoint)
        model.generate(questions(2))
        counts = [torch.get_num_threads(), model._worker.call(lambda _: torch.get_num_threads())]
        fresh = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        fresh.start()
        fresh.join()
        model.close()
        assert counts == [2, 1] and seen == [2]
    finally:
        torch.set_num_threads(1)


# --- scoring --------------------------------------------------------------------------------------


def test_scores_equal_the_logprobs_of_the_samples(any_model):
    answers = [a for seed in range(3) for a in talk(any_model, seed)]
    answers += any_model.generate(questions(10), MIXED[2])
    pairs = [(a.prompt_ids, a.ids) for a in answers]
    found = any_model.logprobs(pairs)
    assert [len(row) for row in found] == [len(a.ids) for a in answers]
    for row, answer in zip(found, answers, strict=True):
        np.testing.assert_allclose(row, answer.logprobs, atol=1e-4, rtol=0)


def test_turns_of_a_path_are_scored_in_one_pass(model, monkeypatch):
    pairs = [(a.prompt_ids, a.ids) for a in talk(model, 3)]
    model.logprobs(pairs)  # it finds out how the network can be asked
    trunk = type(model.network.base_model)
    forward, tokens = trunk.forward, []

    def counting(self, input_ids, **kwargs):
        tokens.append(input_ids.numel())
        return forward(self, input_ids, **kwargs)

    monkeypatch.setattr(trunk, "forward", counting)
    model.logprobs(pairs)
    assert sum(tokens) == max(len(prompt) + len(ids) for prompt, ids in pairs)


def test_scoring_odd_sequences(model):
    assert model.logprobs([]) == []
    found = model.logprobs([((5, 6), ()), ((5, 6), (7,)), ((5, 6), (7,))])
    assert found[0] == [] and found[1] == found[2] and len(found[1]) == 1
    for bad in [((), (1,)), ((1,), (10_000,)), ((-1,), (1,)), ((1,) * 3000, (1,))]:
        with pytest.raises(ModelError):
            model.logprobs([bad])


@pytest.mark.skipif(
    not shipped_path("turnbench/tiny").is_dir(), reason="the shipped model isn't there yet"
)
def test_the_shipped_model_plays():
    model = HfModel("turnbench/tiny", sampling=Sampling(max_tokens=32))
    assert model.name == "turnbench/tiny" and model.chat.append_only
    assert model._worker._decoder.lanes.joins
    answers = talk(model, 0, turns=3)
    assert answers[1].usage.cached_tokens > 0
    for answer in answers:
        np.testing.assert_allclose(answer.logprobs, exact(model, answer), atol=1e-4, rtol=0)
    model.close()


def test_a_network_in_memory_is_asked_as_it_stands(checkpoint):
    loaded = HfModel(checkpoint, sampling=Sampling(max_tokens=6))
    network = loaded.network
    live = HfModel.of(network, loaded.tokenizer, sampling=Sampling(max_tokens=6))
    asked = [
        Prompt((Message("user", "get 2 oak log and craft 4 stick " * 2),), seed=k) for k in range(5)
    ]
    before = live.generate(asked)
    assert before == loaded.generate(asked)
    with torch.no_grad():
        for p in network.parameters():
            p.mul_(1.5)
    live.forget()
    after = live.generate(asked)
    fresh = HfModel.of(network, loaded.tokenizer, sampling=Sampling(max_tokens=6)).generate(asked)
    assert after == fresh != before
    assert all(a.usage.cached_tokens == b.usage.cached_tokens for a, b in zip(after, fresh, strict=True))


def test_checkpoints_load_side_by_side(checkpoint):
    wanted = load_checkpoint(checkpoint, "cpu")[1].state_dict()
    with ThreadPoolExecutor(4) as pool:
        found = [
            network for _, network in pool.map(lambda _: load_checkpoint(checkpoint, "cpu"), range(8))
        ]
    for network in found:
        for name, weight in network.state_dict().items():
            assert torch.equal(weight, wanted[name])


def test_missing_weights_are_an_error(checkpoint, tmp_path):
    from safetensors.torch import load_file, save_file

    shutil.copytree(checkpoint, tmp_path / "m")
    weights = load_file(tmp_path / "m" / "model.safetensors")
    del weights["model.layers.1.mlp.down_proj.weight"]
    save_file(weights, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match="lacks weights .*layers.1.mlp.down_proj.weight"):
        load_checkpoint(str(tmp_path / "m"), "cpu")
    with pytest.raises(ModelError, match="lacks weights .* score.weight"):
        load_classifier(checkpoint, "cpu")
