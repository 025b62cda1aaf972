"""How well a model predicts a text, at what depth, and how sure a difference between two models is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from tqdm import tqdm

from laval.evaluate.reader import reader_of
from laval.evaluate.text import as_text, text_batches
from laval.models.switches import evaluating

RESAMPLES = 1000


@dataclass(frozen=True)
class TextScore:
    """A model on a text.

    nats: mean per scored token. bits_per_byte: None when the bytes of the text are not known. tokens, bytes: scored.
    mean_depth: layers run per token that went in. layer_rates: share of those tokens that ran each layer.
    """

    perplexity: float
    nats: float
    bits_per_byte: float | None
    tokens: int
    bytes: int | None
    mean_depth: float
    layer_rates: tuple[float, ...]


@dataclass(frozen=True)
class Interval:
    """A perplexity ratio and its 95 % bootstrap interval."""

    ratio: float
    low: float
    high: float


def perplexity(
    model, ids, length: int = 512, stride: int | None = None, batch: int = 8, progress: bool = True
) -> TextScore:
    """TextScore of a model on a Text or its token ids [N].

    The text is cut into windows of `length` input tokens, a new one every `stride` (default: no overlap). Each token
    is scored once, from its own window; the first token of the text has nothing before it and is not scored. Depth
    is the mean over all positions that were fed in; pads never count. Any Hugging Face causal language model will do.
    """
    text = as_text(ids)
    nats, rates = read_through(model, text, length, stride, batch, progress)
    return summary(nats, rates, text.bytes)


def per_token(
    model, ids, length: int = 512, stride: int | None = None, batch: int = 8, progress: bool = True
) -> torch.Tensor:
    """Nats of each token but the first, in text order, float64 [N - 1]: for paired comparisons."""
    return read_through(model, as_text(ids), length, stride, batch, progress)[0]


def read_through(model, text, length, stride, batch, progress) -> tuple[torch.Tensor, torch.Tensor]:
    """Nats per scored token [N - 1], and the share of the positions fed in that ran each layer [L]; both float64."""
    reader = reader_of(model)
    nats, counts, fed = [], torch.zeros(reader.layers, dtype=torch.int64), 0
    with evaluating(model):
        for part in tqdm(text_batches(text, length, stride, batch), "reading", disable=not progress, leave=False):
            seen = reader.forward(part)
            nats.append(reader.nats(seen.states, part))
            counts += seen.run[:, part.valid].sum(1)
            fed += int(part.valid.sum())
    return torch.cat(nats), counts.double() / fed


def summary(nats: torch.Tensor, rates: torch.Tensor, count: int | None) -> TextScore:
    """TextScore from nats per token [N - 1], run rates by layer [L], and the bytes scored."""
    mean = float(nats.mean())
    return TextScore(
        perplexity=math.exp(mean) if mean < 700 else math.inf,
        nats=mean,
        bits_per_byte=float(nats.sum()) / math.log(2) / count if count else None,
        tokens=len(nats),
        bytes=count,
        mean_depth=float(rates.sum()),
        layer_rates=tuple(rates.tolist()),
    )


def ratio_interval(a: torch.Tensor, b: torch.Tensor, seed: int = 0, length: int = 512) -> Interval:
    """Perplexity of a over that of b, from nats per token of the same text [N], with a 95 % bootstrap interval.

    Whole windows of `length` tokens are drawn anew, for neighbours are not independent. ValueError for unequal texts.
    """
    if a.shape != b.shape or not len(a):
        raise ValueError(f"a has {len(a)} tokens and b {len(b)}; expected nats of the same text from `per_token`")
    parts = (a.double() - b.double()).split(length)
    sums = torch.stack([part.sum() for part in parts])  # [W]
    sizes = torch.tensor([len(part) for part in parts], dtype=torch.float64)
    draw = torch.randint(len(parts), (RESAMPLES, len(parts)), generator=torch.Generator().manual_seed(seed))
    means = sums[draw].sum(1) / sizes[draw].sum(1)  # [RESAMPLES]
    low, high = means.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).exp().tolist()
    return Interval(float((sums.sum() / sizes.sum()).exp()), low, high)
