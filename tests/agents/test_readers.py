"""Readers of given tokens: right against a plain loop, whatever is shared, cut, merged or asked of a server."""

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from turnbench.agents.best_of_n import BestOfN  # noqa: E402
from turnbench.agents.confidence import (  # noqa: E402
    DeepConfBottom,
    DeepConfLowest,
    DeepConfTail,
    Entropy,
    MeanLogprob,
    Perplexity,
    SelfCertainty,
    windows,
)
from turnbench.agents.hf import HfModel  # noqa: E402
from turnbench.agents.measure import MEASURES, TOP  # noqa: E402
from turnbench.agents.merging import merge  # noqa: E402
from turnbench.agents.model import Sampling  # noqa: E402
from turnbench.agents.progress import ProgressAdvantage  # noqa: E402
from turnbench.agents.readers import LocalReader, measured, open_reader, scribe_of  # noqa: E402
from turnbench.agents.spans import fit  # noqa: E402
from turnbench.agents.transcripts import Conversation, Message, Scribe, conversation  # noqa: E402
from turnbench.agents.trees import Price  # noqa: E402
from turnbench.agents.turn_scores import ask_apart  # noqa: E402
from turnbench.envs.errors import ConfigError, ModelError, UnknownName, Unscored  # noqa: E402
from turnbench.envs.record import Task  # noqa: E402
from turnbench.envs.toy import Toy  # noqa: E402

TASK = Task("turnbench/Toy-v0", "0", seed=5)


@pytest.fixture(scope="module")
def other(make_checkpoint):
    return make_checkpoint(scale=0.4)


@pytest.fixture(scope="module")
def paths(checkpoint):
    """Three paths of the toy world, played by the checkpoint."""
    model = HfModel(checkpoint, sampling=Sampling(max_tokens=8))
    population = BestOfN(model, n=3, scorer="random").solve(Toy(), TASK, np.random.default_rng(0))
    model.close()
    return population.trajectories


def plainly(network, prompt, ids):
    """What the plain loop has: a pass a sequence, all logits, in float64."""
    with torch.inference_mode():
        whole = network(input_ids=torch.tensor([[*prompt, *ids]])).logits[0].double().log_softmax(-1)
    at = whole[len(prompt) - 1 : -1]
    size = at.shape[-1]
    return {
        "logprob": at.gather(1, torch.tensor(ids)[:, None])[:, 0].tolist(),
        "entropy": (-(at.exp() * at).sum(-1)).tolist(),
        "certainty": (-at.mean(-1) - math.log(size)).tolist(),
        "top": at.topk(TOP).values.mean(-1).tolist(),
    }


def sequences(rng, vocabulary):
    """Nested turns, a family with a long common beginning, and one that is alone."""
    start = tuple(rng.integers(vocabulary, size=50).tolist())
    tails = [tuple(rng.integers(vocabulary, size=n).tolist()) for n in (3, 9, 20)]
    family = [(start, tails[0]), (start, tails[2]), (start + tails[0] + tails[1], tails[0])]
    return [*family, (start[:20] + tails[1], tails[1]), (tails[1], tails[2])]


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_measures_are_those_of_a_plain_loop(make_checkpoint, kind) -> None:
    """gemma2 caps its logits, so that its head can't be asked alone, and slides its window."""
    reader = LocalReader(make_checkpoint(kind=kind))
    network = reader._worker._decoder.network
    pairs = sequences(np.random.default_rng(0), 350)
    measurer = reader._worker._decoder.measurer
    assert (measurer.price is not None) == (kind == "llama")
    measurer.threads = 3
    for price in (measurer.price, measurer.price and Price(0, 0)):  # where it pays; wherever it can be
        measurer.price = price
        for row, pair in zip(reader.measure(pairs, tuple(MEASURES)), pairs, strict=True):
            for name, wanted in plainly(network, *pair).items():
                np.testing.assert_allclose(row[name], wanted, atol=2e-4, err_msg=f"{kind} {name}")
    reader.close()


@pytest.mark.parametrize("cap", [None, 2.0])
def test_capped_logits_are_those_of_the_head_and_the_cap(make_checkpoint, cap) -> None:
    reader = LocalReader(make_checkpoint(kind="gemma2", final_logit_softcapping=cap))
    decoder = reader._worker._decoder
    pairs = [((5, 6, 7), (8, 9)), ((5, 6, 7, 8, 9, 10), (11, 12))]
    for pair, found in zip(pairs, reader.measure(pairs, ["entropy"]), strict=True):
        for name, values in plainly(decoder.network, *pair).items():
            if name in found:
                np.testing.assert_allclose(found[name], values, atol=1e-4)
    assert (decoder.measurer.head is decoder.network.get_output_embeddings()) == (cap is None)
    assert decoder.measurer.head is not None
    reader.close()


def test_p8_peaked_is_surer_than_flat() -> None:
    peaked, flat = torch.zeros(1, 100), torch.zeros(1, 100)
    peaked[0, 3] = 12.0
    found = {}
    for name, logits in (("peaked", peaked), ("flat", flat)):
        norm = logits.logsumexp(-1)
        found[name] = {n: float(MEASURES[n](logits, norm)) for n in MEASURES}
    assert found["flat"]["certainty"] == pytest.approx(0, abs=1e-5)
    assert found["flat"]["entropy"] == pytest.approx(math.log(100), abs=1e-5)
    for cls in (SelfCertainty, DeepConfTail, DeepConfBottom, DeepConfLowest, Entropy):
        for compat in (False, True) if cls is not Entropy else (False,):
            scorer = cls(policy="", **({"repo_compat": True} if compat else {}))
            sure, unsure = (
                scorer.rate_tokens([[found[n][scorer.column]]])[1] for n in ("peaked", "flat")
            )
            assert (sure > unsure) != compat, f"{cls.__name__} {compat}"


def test_p8_windows_of_tokens_and_of_turns() -> None:
    turns = [[-1.0, -2.0, -9.0], [-4.0]]
    assert windows([1, 2, 9, 4], 2) == [1.5, 5.5, 6.5] and windows([1, 3], 5) == [2]
    made = {
        c: c(policy="", window=2).rate_tokens(turns)[1]
        for c in (DeepConfTail, DeepConfBottom, DeepConfLowest)
    }
    assert list(made.values()) == [6.5, 1.5, 1.5]
    fifteen = [[-float(k) for k in range(16)]]  # windows of two: 0.5, 1.5, ...
    assert DeepConfBottom(policy="", window=2).rate_tokens(fifteen)[1] == 0.5
    assert DeepConfBottom(policy="", window=1).rate_tokens([[-float(k) for k in range(20)]])[1] == 0.5
    assert DeepConfTail(policy="", repo_compat=True).rate_tokens(turns)[1] == -4
    assert SelfCertainty(policy="", repo_compat=True).rate_tokens(turns)[1] == -4
    assert SelfCertainty(policy="").rate_tokens(turns)[1] == -4
    assert (
        Perplexity().rate_tokens(turns)[1] == -math.exp(4)
        and MeanLogprob().rate_tokens([])[1] == -math.inf
    )


def test_p10_the_merged_reference_at_both_ends(checkpoint, other, paths, tmp_path) -> None:
    def scores(alpha):
        spec = {"path": checkpoint, "merge": other, "alpha": alpha}
        scorer = ProgressAdvantage(policy=other, reference=spec, resident=False)
        return np.array([x for row in scorer.turns(paths) for x in row])

    plain = ProgressAdvantage(policy=other, reference=checkpoint, resident=False).turns(paths)
    np.testing.assert_allclose(scores(0.0), [x for row in plain for x in row], atol=1e-6)
    assert np.abs(scores(0.0)).max() > 0.01
    np.testing.assert_allclose(scores(1.0), 0, atol=1e-6)
    half = LocalReader(str(merge(checkpoint, other, 0.5, tmp_path / "half")))
    one, two = LocalReader(checkpoint), LocalReader(other)
    weights = [r._worker._decoder.network.state_dict() for r in (one, two, half)]
    for name, value in weights[2].items():
        torch.testing.assert_close(value, (weights[0][name] + weights[1][name]) / 2)
    for reader in (half, one, two):
        reader.close()


def test_merging_refuses_what_doesnt_fit(checkpoint, make_checkpoint, tmp_path) -> None:
    wide = make_checkpoint(intermediate_size=32)
    with pytest.raises(ConfigError, match="shape"):
        merge(checkpoint, wide, 0.5, tmp_path / "a")
    with pytest.raises(ConfigError, match="one architecture"):
        merge(checkpoint, make_checkpoint(num_hidden_layers=1), 0.5, tmp_path / "b")
    with pytest.raises(ConfigError, match="alpha is 2"):
        merge(checkpoint, checkpoint, 2, tmp_path / "c")
    with pytest.raises(ConfigError, match="merged reference"):
        open_reader({"path": checkpoint, "alpha": 0.5})


def test_the_log_holds_what_the_policy_would_say(checkpoint, other, paths) -> None:
    """So without a policy only the reference has to read; and a suite's option makes the scorer."""
    named = ProgressAdvantage(policy=checkpoint, reference=other).turns(paths)
    unnamed = ProgressAdvantage(reference=other).turns(paths)
    for one, two in zip(named, unnamed, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-4)


def test_p6_a_policy_that_is_its_own_reference_scores_zero(checkpoint, paths) -> None:
    turns = ProgressAdvantage(policy=checkpoint, reference=checkpoint).turns(paths)
    assert {x for row in turns for x in row} == {0.0}


def test_p6_holds_where_one_context_is_shorter(make_checkpoint, checkpoint, paths) -> None:
    """Both read what the shorter one holds, and the path says what was cut."""
    short = make_checkpoint(context=max(len(p) + len(i) for x in paths for p, i in x.sequences()) - 4)
    for options in (
        {"policy": short, "reference": checkpoint},
        {"policy": checkpoint, "reference": short},
    ):
        found = ProgressAdvantage(**options).turns(paths)
        assert np.abs([x for row in found for x in row]).max() < 1e-5
        cut = [path.info.pop("turns_cut_from_the_left", 0) for path in paths]
        assert any(0 < count < len(path.turns) for count, path in zip(cut, paths, strict=True))
    ProgressAdvantage(policy=checkpoint, reference=checkpoint).turns(paths)
    assert not any("turns_cut_from_the_left" in path.info for path in paths)


def test_an_attempt_without_log_probs_costs_no_other_its_score(paths) -> None:
    bare = replace(paths[0], turns=(replace(paths[0].turns[0], tokens=None),))
    scorer = MeanLogprob()
    found = ask_apart(scorer.rate, [paths[0], bare, paths[1]])
    assert isinstance(found[1], Unscored) and [found[0], found[2]] == scorer.rate(paths[:2])
    with pytest.raises(ConfigError, match="needs log-probs"):
        scorer.rate([bare, bare])
    (turn, *rest), nan = paths[0].turns, (math.nan,) * len(paths[0].turns[0].tokens.ids)
    lost = replace(turn, tokens=turn.tokens._replace(logprobs=nan))
    with pytest.raises(Unscored, match="turn 1: the log gave a log-prob that is no finite number"):
        scorer.rate([replace(paths[0], turns=(lost, *rest))])


def test_best_of_n_by_progress_advantage_shows_its_turns(checkpoint, other) -> None:
    spec = {"scorer": "progress", "reference": other, "token": "sum", "turn": "sum"}
    model = HfModel(checkpoint, sampling=Sampling(max_tokens=8))
    agent = BestOfN(model, n=3, scorer=spec)
    population = agent.solve(Toy(), TASK, np.random.default_rng(1))
    model.close()
    assert agent.privileges == () and population.chosen == int(np.argmax(population.scores))
    for path, score in zip(population.trajectories, population.scores, strict=True):
        (numbers,) = path.info["turn_scores"].values()
        assert len(numbers) == len(path.turns) and sum(numbers) == pytest.approx(score, rel=1e-4)


def test_models_in_turn_are_never_in_memory_together(checkpoint, other, paths, monkeypatch) -> None:
    alive, most = [0], [0]
    begin, end = LocalReader.__init__, LocalReader.close

    def opening(self, *args, **options):
        begin(self, *args, **options)
        alive[0] += 1
        most[0] = max(most[0], alive[0])

    def closing(self):
        end(self)
        alive[0] -= 1

    monkeypatch.setattr(LocalReader, "__init__", opening)
    monkeypatch.setattr(LocalReader, "close", closing)
    ProgressAdvantage(policy=checkpoint, reference=other, resident=False).turns(paths)
    assert (alive, most) == ([0], [1])


# --- text, tokens and context ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def reader(checkpoint):
    made = LocalReader(checkpoint)
    yield made
    made.close()


TALK = Conversation(
    (
        Message("user", "Goal: craft stick."),
        Message("assistant", "get 2 oak log"),
        Message("user", "Got 2 oak log"),
        Message("assistant", "craft 4 stick using 2 oak planks"),
    ),
    (1, 3),
)


def test_forms_of_text_and_their_spans(reader) -> None:
    for form, wanted in (
        ("chat", ["get 2 oak log<|end|>", "craft 4 stick using 2 oak planks<|end|>"]),
        ("plain", [" get 2 oak log\n", " craft 4 stick using 2 oak planks\n"]),
    ):
        pairs = scribe_of(reader, form).pairs(TALK)
        assert [reader.tokenizer.decode(ids) for _, ids in pairs] == wanted
        (first, one), (second, _) = pairs
        assert second[: len(first) + len(one)] == first + one


def test_ids_of_the_log_are_those_of_the_text_written_anew(reader, paths) -> None:
    scribe = scribe_of(reader, "log")
    for path in paths:
        for turn, (_, ids) in zip(path.turns, scribe.pairs(path), strict=True):
            assert ids == turn.tokens.ids


def test_ids_of_another_tokenizer_are_refused(reader, paths) -> None:
    scribe = scribe_of(reader, "log")
    turns = [t for t in paths[0].turns]
    forged = [type(turns[0])(t.observation, "other words", t.reward, None, t.tokens) for t in turns]
    path = type(paths[0])(paths[0].task, tuple(forged), "", paths[0].outcome)
    with pytest.raises(ModelError, match="aren't this tokenizer's"):
        scribe.pairs(path)
    assert scribe_of(reader, "chat").pairs(path)


def test_different_vocabularies_are_refused(checkpoint, make_checkpoint, paths, tmp_path) -> None:
    import json
    import shutil

    folder = tmp_path / "renamed"
    shutil.copytree(checkpoint, folder)
    text = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocab = text["model"]["vocab"]
    one, two = sorted(vocab)[40:42]
    vocab[one], vocab[two] = vocab[two], vocab[one]
    (folder / "tokenizer.json").write_text(json.dumps(text), encoding="utf-8")
    with pytest.raises(ModelError, match="different vocabularies"):
        ProgressAdvantage(policy=checkpoint, reference=str(folder), resident=False).turns(paths)


def test_a_tokenizer_that_doesnt_round_trip_is_refused(reader) -> None:
    import copy

    from tokenizers import normalizers

    tokenizer = copy.deepcopy(reader.tokenizer)
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    with pytest.raises(ModelError, match="round-trip.*Goal: craf.*becomes"):
        Scribe(tokenizer, 400, "plain").pairs(TALK)


def test_an_action_without_tokens_is_refused(reader) -> None:
    said = Conversation((Message("user", "a"), Message("assistant", "")), (1,))
    assert scribe_of(reader, "chat").pairs(said)[0][1] == (2,)  # the end of the turn is a token
    with pytest.raises(ModelError, match="turn 2 has no tokens"):
        fit([((1,), (2,)), ((1, 2), ())], 100)


def test_a_path_longer_than_the_context_is_cut_from_the_left_and_says_so(make_checkpoint, paths) -> None:
    short = LocalReader(make_checkpoint(context=64))
    path = max(paths, key=lambda p: len(p.sequences()[-1][0]))
    whole = sum(len(prompt) + len(ids) > 64 for prompt, ids in path.sequences())
    (found,) = measured(short, scribe_of(short), [path])
    assert found.cut == whole > 0
    assert [len(turn["logprob"]) for turn in found.turns] == [len(t.tokens.ids) for t in path.turns]
    short.close()


def test_cuts_keep_half_a_context_and_neighbours_in_one_pass() -> None:
    ids = tuple(range(1000))
    pairs = [(ids[:n], ids[n : n + 5]) for n in range(10, 900, 10)]
    fitted, cut = fit(pairs, 100)
    assert cut == sum(len(p) + 5 > 100 for p, _ in pairs)
    assert all(
        50 <= len(p) + len(a) <= 100
        for (p, a), (q, _) in zip(fitted, pairs, strict=True)
        if len(p) < len(q)
    )
    assert all(a == b for (_, a), (_, b) in zip(fitted, pairs, strict=True))
    assert all(p == q[len(q) - len(p) :] for (p, _), (q, _) in zip(fitted, pairs, strict=True))
    assert len({p[0] for p, _ in fitted}) < 20
    with pytest.raises(ModelError, match="60 tokens; the model's context is 50"):
        fit([(ids[:10], ids[10:70])], 50)
    assert fit([(ids[:30], ids[30:75])], 50)[0][0][1] == ids[30:75]


def test_wrong_choices_are_refused(checkpoint, reader) -> None:
    with pytest.raises(UnknownName, match="plain"):
        scribe_of(reader, "plane")
    with pytest.raises(ConfigError, match="without a policy"):
        ProgressAdvantage(reference=checkpoint, text="chat")
    with pytest.raises(UnknownName, match="hf"):
        open_reader({"backend": "tf", "path": checkpoint})
    with pytest.raises(ModelError, match="no checkpoint folder"):
        open_reader("nowhere")
    assert conversation(type("P", (), {"turns": ()})()) == ((), ())


SIDE_BY_SIDE = """
from concurrent.futures import ThreadPoolExecutor
from turnbench.agents.readers import least_context, load_tokenizer, reading

def ask(k):
    if k % 3 == 0:
        return len(load_tokenizer("turnbench/tiny"))
    if k % 3 == 1:
        return least_context("turnbench/tiny")
    with reading("turnbench/tiny") as reader:
        return reader.context

with ThreadPoolExecutor(8) as pool:
    print(*sorted(set(pool.map(ask, range(12)))))
"""


def test_a_process_may_begin_with_readers_in_many_threads() -> None:
    """Not even transformers' first import is safe in two of them."""
    command = [sys.executable, "-c", SIDE_BY_SIDE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["2048", "2666"], done.stderr
