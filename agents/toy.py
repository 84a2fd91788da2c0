"""A language model that plays the toy world by a policy table, for tests with exact answers."""

import math

import numpy as np

from turnbench.agents.model import Answer, Completion, Prompt, ScriptedModel
from turnbench.envs.record import Usage
from turnbench.envs.toy import Array, ToyMDP, understand


def toy_model(mdp: ToyMDP, policy: Array) -> ScriptedModel:
    """Samples actions from `policy` ([S, A] or [H, S, A]) with exact log-probs, seeded by the prompt.

    Token k < A is action k, token A + s is the observation of state s: an episode is one sequence
    of tokens that only grows.
    """
    table = np.broadcast_to(policy, (mdp.horizon, len(mdp.states), len(mdp.actions)))

    def answer(prompt: Prompt) -> Answer:
        turn, state = understand(mdp, prompt.messages[-1].content)
        odds = table[turn, state]
        action = int(np.random.default_rng(prompt.seed).choice(len(odds), p=odds))
        seen = (*prompt.context, len(mdp.actions) + state)
        usage = Usage(1, len(seen), 0, 1)
        return Completion(
            mdp.actions[action],
            usage=usage,
            prompt_ids=seen,
            ids=(action,),
            logprobs=(math.log(odds[action]),),
        )

    return ScriptedModel(answer, name="toy")
