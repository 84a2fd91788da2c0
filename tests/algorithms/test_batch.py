"""Episodes as tensors: every token where it was sampled, every turn with its own prompt and reward."""

import random

import pytest
import torch

from turnbench.algorithms.batch import Batch, Episode, collate
from turnbench.envs.errors import LogError
from turnbench.envs.record import Outcome, Task, Tokens, Trajectory, Turn

TASK = Task("turnbench/Toy-v0", "0")


def path(turns, outcome=Outcome.OK):
    """A trajectory from (prompt ids, action ids, reward), each prompt as a whole."""
    made, whole = [], ()
    for k, (prompt, ids, reward) in enumerate(turns):
        keep = 0
        while keep < min(len(whole), len(prompt)) and whole[keep] == prompt[keep]:
            keep += 1
        logprobs = tuple(-0.01 * token for token in ids)
        tokens = Tokens(keep, tuple(prompt[keep:]), tuple(ids), logprobs)
        made.append(Turn(f"seen {k}", "act", reward, None, tokens))
        whole = tuple(prompt) + tuple(ids)
    return Trajectory(TASK, tuple(made), "end", outcome)


def random_path(rng, window):
    """A path whose prompts hold the last `window` turns (all: they extend each other)."""
    turns, told = [], []
    for _ in range(rng.randint(1, 6)):
        told.append([rng.randint(1, 9) for _ in range(rng.randint(1, 4))])
        kept = told if window is None else told[-2 * window - 1 :]
        prompt = [0, *(token for part in kept for token in part)]
        ids = [rng.randint(10, 19) for _ in range(rng.randint(1, 5))]
        told.append(ids)
        turns.append((prompt, ids, rng.random()))
    return path(turns)


def check(batch: Batch, episodes):
    """Every action token stands behind exactly the ids that it was sampled from."""
    place = batch.acts.nonzero().tolist()
    at = 0
    for b, episode in enumerate(episodes):
        token = 0
        for k, (turn, (prompt, ids)) in enumerate(
            zip(episode.path.turns, episode.path.sequences(), strict=True)
        ):
            for j, expected in enumerate(ids):
                row, column = place[at]
                assert batch.owner[row] == b
                assert batch.ids[row, column] == expected
                assert tuple(batch.ids[row, :column].tolist()) == prompt + ids[:j]
                assert batch.turns.index[b, token] == k
                assert batch.old[b, token].item() == pytest.approx(turn.tokens.logprobs[j])
                at, token = at + 1, token + 1
            assert batch.rewards[b, k] == turn.reward
        assert batch.turns.mask[b].sum() == token
    assert at == len(place)


@pytest.mark.parametrize("window", [None, 0, 1, 2])
@pytest.mark.parametrize("seed", range(5))
def test_every_token_stands_behind_what_it_was_sampled_from(window, seed):
    rng = random.Random(seed)
    episodes = [Episode(random_path(rng, window), k // 2) for k in range(7)]
    batch = collate(episodes)
    check(batch, episodes)
    if window is None:
        assert len(batch.ids) == len(episodes)
    chosen = [1, 4, 6]
    check(batch.take(chosen), [episodes[k] for k in chosen])
    for limit in (1, 60, 10**6):
        numbered = batch.with_extra(number=torch.arange(len(batch)))
        parts = list(numbered.pieces(limit))
        assert sorted(n for p in parts for n in p.extra["number"].tolist()) == list(range(len(batch)))
        for part in parts:
            check(part, [episodes[k] for k in part.extra["number"].tolist()])
            assert len(part) == 1 or part.ids.numel() <= limit


def test_a_prompt_that_starts_anew_is_a_row_of_its_own_with_its_turn_number():
    episode = Episode(path([([1], [10], 0.5), ([1, 10, 2], [11], 0.0), ([3], [12, 13], 1.0)]))
    batch = collate([episode])
    assert batch.ids.tolist() == [[1, 10, 2, 11], [3, 12, 13, 0]]
    assert batch.turns.index.tolist() == [[0, 1, 2, 2]]
    assert batch.rewards.tolist() == [[0.5, 0.0, 1.0]] and batch.ret.tolist() == [1.5]


def test_rewards_of_every_turn_arrive():
    """Only the last reward reaching the loss is a fault others have had."""
    batch = collate(
        [Episode(path([([1], [10], 0.25), ([1, 10, 2], [11], 0.5), ([1, 10, 2, 11, 3], [12], 1)]))]
    )
    assert batch.rewards.tolist() == [[0.25, 0.5, 1.0]]


def test_what_the_critic_says_is_taken_before_a_token_after_a_turn_and_at_a_cut_end():
    cut = path([([1, 2], [10, 11], 0.0), ([1, 2, 10, 11, 3], [12], 0.0)], Outcome.TRUNCATED)
    ended = path([([5], [14], 1.0)])
    tail = (1, 2, 10, 11, 3, 12, 4, 4)
    batch = collate([Episode(cut, 0, tail), Episode(ended)])
    said = torch.arange(16.0).reshape(2, 8)
    assert batch.ids[0].tolist() == list(tail)
    assert batch.before(said).tolist() == [[1, 2, 4], [8, 0, 0]]
    assert batch.after_turns(said).tolist() == [[3, 5], [9, 0]]
    assert batch.bootstrap(said).tolist() == [7, 0]
    assert collate([Episode(cut)]).bootstrap(said[:1, :6]).tolist() == [5]
    assert not collate([Episode(cut, 0, tail)], bootstrap=False).truncated.any()


def test_a_tail_that_extends_nothing_is_a_row_without_actions():
    cut = path([([1, 2], [10], 0.0)], Outcome.TRUNCATED)
    batch = collate([Episode(cut, 0, (7, 8, 9, 9))])
    assert batch.ids.tolist() == [[1, 2, 10, 0], [7, 8, 9, 9]] and batch.owner.tolist() == [0, 0]
    assert batch.acts.sum() == 1
    assert batch.bootstrap(torch.arange(8.0).reshape(2, 4)).tolist() == [7]


def test_turns_and_episodes_without_tokens_have_no_weight():
    empty = path([([1], [], 0.5), ([1, 2], [10], 0.0), ([1, 2, 10, 3], [], 0.25)])
    nothing = Trajectory(TASK, (), "", Outcome.OK)
    batch = collate([Episode(empty), Episode(nothing)])
    assert batch.turns.lengths.tolist() == [[1.0], [0.0]]
    assert batch.rewards.tolist() == [[0.25], [0.0]] and batch.ret.tolist() == [0.75, 0.0]
    assert batch.acts.sum(1).tolist() == [1, 0]
    only = collate([Episode(nothing)])
    assert only.old.shape == (1, 0) and list(only.pieces(9))[0].ids.shape == (1, 1)


def test_same_sights_in_a_group_share_a_number_and_others_do_not():
    one = path([([1], [10], 0.0), ([1, 10, 2], [11], 0.0)])
    batch = collate([Episode(one, 0), Episode(one, 0), Episode(one, 1)])
    a = batch.anchors.tolist()
    assert a[0] == a[1] and not set(a[0]) & set(a[2]) and a[0][0] != a[0][1]


def test_a_turn_without_ids_is_refused_not_guessed():
    bare = Trajectory(TASK, (Turn("o", "a", 0.0),), "", Outcome.OK)
    with pytest.raises(LogError, match="no token ids"):
        collate([Episode(bare)])
