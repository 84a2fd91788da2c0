"""What tests of several worlds need to play them."""


def play(env, actions):
    """The last answer, and all observations."""
    seen = []
    for action in actions:
        last = env.step(action)
        seen.append(last[0])
    return last, seen
