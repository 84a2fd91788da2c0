"""Rollouts: what they record, how they fail, fork and finish."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnbench.agents.model import Completion
from turnbench.agents.rollout import Move, Rollout, finish_all, play, start_many
from turnbench.envs.core import Step, TextEnv
from turnbench.envs.record import Failure, Outcome, Task, Tokens


class Counter(TextEnv):
    """Counts; "end" ends with success, "lose" without, "crash" raises."""

    closed = 0
    has_success = True

    def tasks(self, split):
        return ["0", "1"]

    def _reset(self, task):
        if task == "broken":
            raise RuntimeError("no such\ntask")
        self.count = 0
        return f"task {task}"

    def _step(self, action):
        if action == "crash":
            raise RuntimeError("bang")
        self.count += 1
        over = action in ("end", "lose")
        return Step(f"count {self.count}", 0.5, over, {"success": action == "end"} if over else None)

    def close(self):
        self.closed += 1


TASK = Task("counter", "0", seed=3)


def started(task: Task = TASK, **kwargs) -> Rollout:
    return Rollout.start(Counter(**kwargs), task, np.random.default_rng(0))


def played(*actions: str, **kwargs) -> Rollout:
    rollout = started(**kwargs)
    for action in actions:
        rollout.advance(Move(action))
    return rollout


def test_turns_pair_what_was_seen_with_what_was_done() -> None:
    path = played("a", "end").finish()
    assert [(t.observation, t.action, t.reward) for t in path.turns] == [
        ("task 0", "a", 0.5),
        ("count 1", "end", 0.5),
    ]
    assert (path.final, path.outcome, path.success, path.failure) == ("count 2", Outcome.OK, True, None)
    assert path.task == TASK and path.ret == 1.0


@pytest.mark.parametrize(
    ("actions", "outcome", "success"),
    [
        (("a", "lose"), Outcome.OK, False),
        (("a", "a", "a"), Outcome.TRUNCATED, False),
        (("a",), Outcome.TRUNCATED, False),  # stopped before any end
        ((), Outcome.TRUNCATED, False),
        (("a", "a", "end"), Outcome.OK, True),  # ended by the last allowed turn
    ],
)
def test_how_an_episode_ends(actions, outcome, success) -> None:
    path = played(*actions, max_turns=3).finish()
    assert (path.outcome, path.success) == (outcome, success)


def test_an_environment_that_fails_to_start_is_a_failed_path() -> None:
    rollout = started(Task("counter", "broken"))
    path = rollout.finish()
    assert rollout.over and path.turns == ()
    assert (path.outcome, path.failure) == (Outcome.ENV_ERROR, "RuntimeError: no such task")


def test_an_environment_that_fails_later_keeps_its_turns() -> None:
    path = played("a", "crash").finish()
    assert len(path.turns) == 1 and path.final == "count 1"
    assert (path.outcome, path.failure, path.missing) == (Outcome.ENV_ERROR, "RuntimeError: bang", True)


def test_a_model_that_fails_ends_the_path() -> None:
    rollout = played("a")
    rollout.advance(Failure(Outcome.TIMEOUT, "all 5 model calls are used up"))
    path = rollout.finish()
    assert rollout.over and len(path.turns) == 1
    assert (path.outcome, path.failure) == (Outcome.TIMEOUT, "all 5 model calls are used up")


def test_the_completion_is_kept_where_it_is_not_the_action() -> None:
    rollout = started()
    rollout.advance(Move("a", Completion("Thought: hm\nAction: a")))
    rollout.advance(Move("b", Completion("b")))
    assert [t.completion for t in rollout.turns] == ["Thought: hm\nAction: a", None]
    assert [t.text for t in rollout.turns] == ["Thought: hm\nAction: a", "b"]
    assert rollout.turns[0].tokens is None


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), min_size=1, max_size=3)
        ),
        max_size=5,
    )
)
def test_tokens_are_kept_as_differences_and_rebuilt(turns) -> None:
    rollout = started(max_turns=10)
    for prompt, ids in turns:
        done = Completion("x", prompt_ids=tuple(prompt), ids=tuple(ids), logprobs=(-1.0,) * len(ids))
        rollout.advance(Move("x", done))
    assert rollout.finish().sequences() == [(tuple(p), tuple(i)) for p, i in turns]
    assert rollout.context == (tuple(turns[-1][0] + turns[-1][1]) if turns else ())


def test_a_prompt_that_extends_the_context_costs_only_its_end() -> None:
    rollout = started()
    for prompt in ((1, 2), (1, 2, 9, 3), (7, 2, 9)):
        rollout.advance(Move("x", Completion("x", prompt_ids=prompt, ids=(9,), logprobs=(-0.5,))))
    assert [t.tokens for t in rollout.turns] == [
        Tokens(0, (1, 2), (9,), (-0.5,)),
        Tokens(3, (3,), (9,), (-0.5,)),
        Tokens(0, (7, 2, 9), (9,), (-0.5,)),
    ]


def test_forks_go_their_own_way() -> None:
    rollout = played("a")
    twin = rollout.fork()
    twin.advance(Move("end"))
    rollout.advance(Move("b"))
    assert [t.action for t in rollout.turns] == ["a", "b"] and not rollout.over
    assert [t.action for t in twin.turns] == ["a", "end"] and twin.over
    assert rollout.finish().success is False and twin.finish().success is True


def test_forks_draw_their_own_luck_repeatably() -> None:
    draws = []
    for _ in range(2):
        rollout = played("a")
        twins = [rollout.fork(), rollout.fork()]
        draws.append([r.rng.integers(10**9) for r in (rollout, *twins)])
    assert draws[0] == draws[1] and len(set(draws[0])) == 3


def test_a_fork_keeps_how_a_finished_path_ended() -> None:
    for rollout in (played("a", "end"), played("a", "a", max_turns=2), played("crash")):
        assert rollout.fork().finish() == rollout.finish()


def test_a_world_that_cannot_be_forked_makes_a_failed_copy() -> None:
    class Fickle(Counter):
        def _step(self, action):
            return Step(f"object {id(self)}")

    rollout = Rollout.start(Fickle(), TASK, np.random.default_rng(0))
    rollout.advance(Move("a"))
    twin = rollout.fork()
    assert twin.finish().outcome == Outcome.ENV_ERROR and "ForkError" in twin.finish().failure
    assert not rollout.over


def test_many_start_alike_in_worlds_of_their_own() -> None:
    env = Counter()
    rollouts = start_many(env, TASK, np.random.default_rng(1), 3)
    assert rollouts[0].env is env and len({id(r.env) for r in rollouts}) == 3
    assert {r.observation for r in rollouts} == {"task 0"}
    assert len({int(r.rng.integers(10**9)) for r in rollouts}) == 3
    for r in rollouts:
        r.advance(Move("a"))
    assert env.counts.steps == 3, "all work is on one bill"
    assert len(finish_all(rollouts, rollouts[0].env)) == 3
    assert [r.env.closed for r in rollouts] == [0, 1, 1], "the first is the caller's"


class Scripted:
    """Ends path k in its (k + 1)-th turn; notes how many were asked at once."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def act(self, rollouts):
        self.asked.append(len(rollouts))
        return [Move("end" if len(r.turns) == int(r.task.id) else "a") for r in rollouts]


def test_play_asks_only_for_what_still_lives() -> None:
    tasks = [Task("counter", str(k)) for k in range(3)]
    rollouts = [started(task) for task in tasks]
    policy = Scripted()
    play(rollouts, policy)
    assert policy.asked == [3, 2, 1]
    assert [len(r.turns) for r in rollouts] == [1, 2, 3] and all(r.over for r in rollouts)


def test_play_survives_failures() -> None:
    rollouts = [started(Task("counter", "broken")), started()]
    play(rollouts, Scripted())
    assert [r.finish().outcome for r in rollouts] == [Outcome.ENV_ERROR, Outcome.OK]
    play([], Scripted())
