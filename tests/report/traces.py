"""Small traces and a small tokenizer that the tests of reports share."""

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from laval.report import Trace

CORPUS = ["the flow narrows and the flow speeds up", "def flow(x): return x + 12", "naïve café 😀"] * 2


def byte_level() -> PreTrainedTokenizerFast:
    """A byte-level BPE: emoji and most accents take several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def byte_fallback() -> PreTrainedTokenizerFast:
    """The Llama 2 shape: a marker for spaces, unknown characters as <0xNN> tokens, the first space stripped."""
    words = ["<unk>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "▁flow", "▁the", "flow", "s", "."]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def trace(rows: list[list[str]], layers: int = 6, pads: int = 0, seed: int = 0, **more) -> Trace:
    """Random routes for left-padded texts and `pads` more; layer 0 always runs; pads run every layer."""
    length = max(map(len, rows), default=0) + pads
    generator = torch.Generator().manual_seed(seed)
    gate = torch.rand(layers, len(rows), length, generator=generator)
    gate[0] = torch.nan
    kept = [[t >= length - len(row) for t in range(length)] for row in rows]
    valid = torch.tensor(kept, dtype=torch.bool).reshape(len(rows), length)
    run = (gate.isnan() | (gate > 0.5)) | ~valid
    tokens = [["<pad>"] * (length - len(row)) + row for row in rows]
    return Trace(tokens=tokens, run=run, valid=valid, gate=gate, **more)
