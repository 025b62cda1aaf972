"""Labels for the Unigram rule: ends of pieces of a Unigram tokenizer trained on the user's own text."""

from __future__ import annotations

from collections.abc import Iterable

import torch

LONGEST = 16  # characters of a piece, as published


class UnigramEnds:
    """Where the pieces of a text end. Words are split at whitespace; their last piece takes the space behind it.

    Dynamic pooling (arXiv 2211.09761) trains one per data set: 10,000 pieces for English, 200 for Finnish or Hebrew.
    """

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer

    @classmethod
    def train(cls, texts: str | Iterable[str], pieces: int = 10_000) -> UnigramEnds:
        """From a text, or an iterable of texts. ValueError if there is nothing to learn from."""
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers  # slow, and only training asks

        texts = [texts] if isinstance(texts, str) else list(texts)
        characters = sorted(set().union(*texts) - set(" \n\t"))
        if not characters:
            raise ValueError("the text is empty or blank; expected words to learn pieces from")
        if pieces <= len(characters):
            raise ValueError(f"pieces is {pieces}; expected more than the text's {len(characters)} characters")
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.UnigramTrainer(
            vocab_size=pieces,
            max_piece_length=LONGEST,
            initial_alphabet=characters,
            unk_token="<unk>",
            special_tokens=["<unk>"],
            show_progress=False,
        )
        tokenizer.train_from_iterator((line for text in texts for line in text.splitlines()), trainer)
        return cls(tokenizer)

    def __call__(self, text: str) -> torch.Tensor:
        """True at each character that a piece ends with: bool [T]."""
        found = torch.zeros(len(text), dtype=torch.bool)
        for _, stop in self.tokenizer.encode(text, add_special_tokens=False).offsets:
            while stop < len(text) and text[stop].isspace():
                stop += 1
            found[stop - 1] = True
        return found
