"""A small tokenizer for a game's text, and conversations as token ids with a mask of what was said.

The vocabulary is byte-level BPE, so any text round-trips. Before merging, text is cut so that a
run of plain words such as "dark oak planks" can become one token: a small model then copies and
compares names in one step. Numbers up to 99 are single tokens too.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from turnbench.agents.model import Message
from turnbench.envs.errors import ConfigError

PAD, END, USER, ASSISTANT, SYSTEM = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"

# Words that stand between names, so a name ends before them.
BREAKS = r"craft|using|get|to|find"
SPLIT = (
    rf" ?\b(?:{BREAKS})\b| minecraft:"
    rf"| ?[a-z]+(?:_[a-z]+)*(?: (?!(?:{BREAKS})\b)[a-z]+(?:_[a-z]+)*)*"
    r"| ?[A-Z][a-z]*| ?[0-9]{1,2}|\n+|\s+|."
)

# Twice each, so that the merge that makes it is worth a token, however rare it is in the texts.
NUMBERS = tuple(f" {number}" for number in range(100)) * 2

# Only ever appended to: a longer conversation's text starts with that of a shorter one. Each turn of
# the assistant ends with the end-of-sequence token; the others end where the next role begins.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] -}}"
    "{%- if message['role'] == 'assistant' -%}{{- eos_token -}}{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def train_tokenizer(
    texts: Iterable[str], size: int, context: int, words: str | None = None
) -> PreTrainedTokenizerFast:
    """A byte-level BPE of at most `size` tokens with the chat template above.

    What matches the regular expression `words`, as identifiers that mean nothing by their letters, is a token
    each, beyond `size`. The same texts in the same order give the same tokenizer.
    """
    whole: list[str] = []
    if words:
        texts = list(texts)
        whole = sorted({found[0] for text in texts for found in re.finditer(words, text) if found[0]})
        texts = (re.sub(words, "", text) for text in texts)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    special = [PAD, END, USER, ASSISTANT, SYSTEM]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe.train_from_iterator(
        chain(texts, NUMBERS),
        trainers.BpeTrainer(
            vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    bpe.add_tokens([AddedToken(word, normalized=False) for word in whole])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=bpe,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT, SYSTEM],
        chat_template=CHAT_TEMPLATE,
        model_max_length=context,
        clean_up_tokenization_spaces=False,
    )


@dataclass(frozen=True, slots=True)
class Encoded:
    """A conversation as token ids.

    `turn` [tokens]: the number of the assistant message that a token belongs to, counting its
    end-of-turn token, else -1.
    """

    ids: np.ndarray[Any, np.dtype[np.int64]]
    turn: np.ndarray[Any, np.dtype[np.int64]]

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, context: int) -> "Encoded":
        """The first `context` tokens."""
        return Encoded(self.ids[:context], self.turn[:context])


def encode(tokenizer: Any, messages: Sequence[Message]) -> Encoded:
    """The whole conversation's ids, as the tokenizer's chat template renders it.

    Raises ConfigError where the template isn't append-only: what the model is trained on would then
    not be what it is asked to continue.
    """
    text, spans = "", []
    for index, message in enumerate(messages):
        if message.role == "assistant":
            asked = _extend(tokenizer, messages[:index], text, True)
            text = _extend(tokenizer, messages[: index + 1], asked, False)
            spans.append((len(asked), _end_of_turn(text, len(asked), tokenizer.eos_token)))
    text = _extend(tokenizer, messages, text, False)
    coded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    begins = np.array([begin for begin, _ in coded["offset_mapping"]], dtype=np.int64)
    turn = np.full(len(begins), -1, dtype=np.int64)
    for number, (start, end) in enumerate(spans):
        turn[(begins >= start) & (begins < end)] = number
    return Encoded(np.array(coded["input_ids"], dtype=np.int64), turn)


def _extend(tokenizer: Any, messages: Sequence[Message], before: str, ask: bool) -> str:
    rows = [{"role": m.role, "content": m.content} for m in messages]
    text: str = tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=ask)
    if not text.startswith(before):
        raise ConfigError(
            f"the chat template isn't append-only: after message {len(messages)} it renders "
            f"{text[:80]!r}..., which doesn't start with what it rendered before"
        )
    return text


def _end_of_turn(text: str, start: int, eos: str | None) -> int:
    found = text.rfind(eos, start) if eos else -1
    return len(text) if found < 0 else found + len(eos or "")
