"""Tokens: byte-pair encoding learnt from training text, or single characters.

Both depend only on the text and the size of the vocabulary, not on the process or the number of threads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from naspipe.tasks.text.extra import import_extra
from naspipe.tasks.text.sequence import BEGIN, END, NUM_SPECIAL, PAD

_SPECIAL = ("<pad>", "<begin>", "<end>", "\u2047")
"""Names of the special ids; an unknown character is decoded as a double question mark."""


def most_frequent_characters(texts: Iterable[str], limit: int) -> list[str]:
    """Return the most frequent characters, at most ``limit``, sorted by code point.

    Of two equally frequent characters, the one with the smaller code point is preferred.
    """
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    ranked = sorted(counts, key=lambda character: (-counts[character], character))
    return sorted(ranked[:limit])


class Characters:
    """An encoding with one token for each character."""

    def __init__(self, text: str, vocabulary: int) -> None:
        """Assign ids to the characters of a text.

        Args:
            text: The training text.
            vocabulary: Number of ids at most, including the special ones; rarer characters are unknown.
        """
        known = most_frequent_characters([text], vocabulary - NUM_SPECIAL)
        self._ids = {character: NUM_SPECIAL + place for place, character in enumerate(known)}

    def encode(self, text: str) -> list[int]:
        """Return the id of every character."""
        return [self._ids.get(character, NUM_SPECIAL - 1) for character in text]


def learn_subwords(texts: Sequence[str], vocabulary: int) -> str:
    """Learn a byte-pair encoding (Sennrich et al., "Neural Machine Translation of Rare Words", 2016).

    Texts are split at spaces and at punctuation; a space belongs to the word after it.

    Args:
        texts: The training texts.
        vocabulary: Number of ids at most, including the special ones. Short texts may give fewer.

    Returns:
        The encoding as JSON, for ``Subwords``.
    """
    tokenizers = import_extra("tokenizers", "byte-pair encoding")
    # The alphabet is chosen here, since the trainer's choice among equally frequent characters is not deterministic.
    # The tokenizer puts a space before every text, and replaces spaces by this character.
    characters = ("\u2581" + text.replace(" ", "\u2581") for text in texts)
    alphabet = most_frequent_characters(characters, vocabulary - NUM_SPECIAL)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=_SPECIAL[-1]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.Metaspace(), tokenizers.pre_tokenizers.Punctuation("isolated")]
    )
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(_SPECIAL),
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return str(tokenizer.to_str())


class Subwords:
    """A learnt byte-pair encoding."""

    def __init__(self, learnt: str) -> None:
        """Read an encoding.

        Args:
            learnt: The result of ``learn_subwords``.
        """
        self._tokenizer: Any = import_extra("tokenizers", "byte-pair encoding").Tokenizer.from_str(learnt)
        # Otherwise the text "<end>" would be encoded as the special id.
        self._tokenizer.encode_special_tokens = True

    @property
    def size(self) -> int:
        """Number of ids, including the special ones."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without begin and end."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, up to the first end; padding and begin are left out."""
        kept = []
        for token in ids:
            if token == END:
                break
            if token not in (PAD, BEGIN):
                kept.append(token)
        return str(self._tokenizer.decode(kept, skip_special_tokens=False))
