import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from turnbench.agents.chat import Chat  # noqa: E402
from turnbench.agents.hf import HfModel  # noqa: E402
from turnbench.agents.model import Message, Prompt, Sampling  # noqa: E402
from turnbench.envs.errors import ModelError  # noqa: E402

HEAD = "{% for m in messages %}<|start|>{{ m['role'] }}\n"
TAIL = "<|end|>\n{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
SAID = "{{ m['content'] }}"
TEMPLATES = {
    "plain": HEAD + SAID + TAIL,
    "trimming": HEAD + "{{ m['content'] | trim }}" + TAIL,
    "drops reasoning": HEAD
    + "{{ m['content'].split('</think>')[-1] if m['role'] == 'assistant' and not loop.last else m['content'] }}"
    + TAIL,
    "opens reasoning": (HEAD + SAID + TAIL).replace(
        "assistant\n{% endif", "assistant\n<think>\n{% endif"
    ),
    "counts turns": "{{ messages | length }}" + HEAD + SAID + TAIL,
    "without specials": "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: ",
    "leaves answers out": HEAD + "{{ m['content'] if m['role'] == 'user' }}" + TAIL,
    "wants an even start": "{% if messages[0]['role'] != 'user' %}{{ raise_exception('user first') }}{% endif %}"
    + HEAD
    + SAID
    + TAIL,
}


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    from transformers import AutoTokenizer

    return lambda: AutoTokenizer.from_pretrained(checkpoint)


@pytest.fixture(scope="module")
def chat(tokenizer):
    """A Chat for the template of that name."""

    def build(name):
        mine = tokenizer()
        mine.chat_template = TEMPLATES[name]
        return Chat(mine, 10_000)

    return build


def conversation(*answers):
    rows = [Message("user", "Goal: craft stick.")]
    for answer in answers:
        rows += [Message("assistant", answer), Message("user", "Got 2 oak log")]
    return tuple(rows)


def covered(chat, first, answer="inventory", ended=True):
    """A prompt that extends a first one by a sampled answer, and its messages."""
    sampled = [*chat.tokens(answer), *([min(chat.ends)] if ended else [])]
    context = chat.encode(Prompt(first)) + tuple(sampled)
    messages = (*first, Message("assistant", answer), Message("user", "Got 2 oak log"))
    return Prompt(messages, 0, context, len(first) + 1)


@pytest.mark.parametrize("name", ["plain", "trimming", "wants an even start", "drops reasoning"])
@pytest.mark.parametrize("ended", [True, False])
def test_a_covered_prompt_has_the_text_of_the_whole_conversation(chat, name, ended):
    chat = chat(name)
    prompt = covered(chat, conversation("get 2 oak log"), ended=ended)
    ids = chat.encode(prompt)
    assert ids[: len(prompt.context)] == prompt.context
    whole = chat.encode(Prompt(prompt.messages))
    assert chat.tokenizer.decode(ids) == chat.tokenizer.decode(whole)


def test_a_template_without_special_tokens(chat):
    chat = chat("without specials")
    prompt = covered(chat, conversation(), ended=False)
    assert chat.encode(prompt) == prompt.context + tuple(
        chat.tokens("\nuser: Got 2 oak log\nassistant: ")
    )


def test_the_end_of_turn_is_known_from_the_template(tokenizer):
    mine = tokenizer()
    mine.eos_token = "<|pad|>"
    chat = Chat(mine, 10_000, [7])
    assert chat.ends == {0, 2, 7}


@given(st.text(max_size=30), st.text(max_size=30))
@settings(max_examples=60, deadline=None)
def test_the_context_is_taken_whatever_its_message_says(chat, edited, said):
    chat = chat("plain")
    prompt = covered(chat, conversation())
    messages = (prompt.messages[0], Message("assistant", edited), Message("user", said))
    ids = chat.encode(Prompt(messages, 0, prompt.context, 2))
    rest = chat.tokenizer.decode(ids[len(prompt.context) :])
    assert ids[: len(prompt.context)] == prompt.context
    assert rest == f"\n<|start|>user\n{said}<|end|>\n<|start|>assistant\n"


@pytest.mark.parametrize("name", ["opens reasoning", "counts turns"])
def test_a_template_that_rewrites_refuses_covered_prompts(chat, name):
    chat = chat(name)
    first = conversation()
    assert chat.encode(Prompt(conversation("get 2 oak log")))
    with pytest.raises(ModelError, match=r"`reasoning: drop` \(or `history: 0`\)"):
        chat.encode(covered(chat, first))


def test_a_template_that_drops_reasoning_refuses_only_that(chat):
    chat = chat("drops reasoning")
    assert chat.append_only and not chat.keeps_reasoning
    assert chat.encode(covered(chat, conversation()))
    with pytest.raises(ModelError, match="reasoning: drop"):
        chat.encode(covered(chat, conversation(), answer="<think>so</think>get 1 stick"))


def test_templates_that_can_not_be_used(chat):
    with pytest.raises(ModelError, match="leaves out"):
        chat("leaves answers out")
    with pytest.raises(ModelError, match="refuses.*user first"):
        chat("wants an even start").encode(Prompt((Message("assistant", "a"), Message("user", "b"))))


def test_contexts_that_do_not_belong_are_refused(chat):
    chat = chat("plain")
    good = covered(chat, conversation())
    chat.encode(good)
    other = (Message("user", "another goal"), *good.messages[1:])
    wrong = {
        "opening": Prompt(other, 0, good.context, 2),
        "end in an answer": Prompt(good.messages, 0, good.context, 1),
        "followed by": Prompt(good.messages[:2], 0, good.context, 2),
        "a context must": Prompt(good.messages, 0, (), 2),
        "vocabulary": Prompt(good.messages, 0, (*good.context, 10_000), 2),
    }
    for message, prompt in wrong.items():
        with pytest.raises(ModelError, match=message):
            chat.encode(prompt)


def test_a_refused_prompt_leaves_the_model_at_work(checkpoint):
    model = HfModel(checkpoint, sampling=Sampling(max_tokens=4))
    asked = Prompt((Message("user", "a"),))
    with pytest.raises(ModelError):
        model.generate([asked, Prompt(asked.messages, 0, (1,), 1)])
    assert len(model.generate([asked])) == 1
    model.close()
