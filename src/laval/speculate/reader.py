"""The dense model reading one text: forwards over a cache that can also forget, and that can be made exact again."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cached_property

import torch
from transformers.cache_utils import DynamicCache

from laval.compat import cache_argument
from laval.models import using
from laval.models.loop import Walk, plain_model
from laval.speculate.states import States


class Reader:
    """`cache` holds dense keys and values of the first `length` tokens of a text.

    The first `exact` of them come from the very passes that plain decoding makes (the prompt, then token by token).
    The others were read several at once: the same up to rounding. `tokens`: the text's first `length` ids; `states`,
    if wanted: the last hidden states of those tokens that were read here.
    """

    def __init__(self, model, cache: DynamicCache, states: States | None = None):
        self.model, self.cache, self.states = model, cache, states
        self.length = self.exact = cache.get_seq_length()
        self.prompt = 0
        self.tokens: list[int] = []

    def start(self, ids: torch.Tensor) -> torch.Tensor:
        """Read the prompt ids [1, T], or what the cache lacks of it; logits of its last token [1, V]."""
        if self.states:
            self.states.start(self.length)
        self.tokens = ids[0].tolist()
        logits = self.forward(ids[:, self.length :], logits_to_keep=1)
        self.prompt = self.length = self.exact = ids.shape[1]
        # from here on, layers with a window keep what a step back may need, until told otherwise by `forget`
        self.cache.activate_past_recording()
        return logits

    def read(self, tokens) -> torch.Tensor:
        """Append tokens (a list of T ids) and return their logits [T, V]."""
        logits = self.forward(torch.tensor([tokens], device=self.model.device))
        plain = len(tokens) == 1 and self.exact == self.length
        self.tokens += tokens
        self.length += len(tokens)
        self.exact += plain
        return logits

    def forget(self, count: int) -> None:
        """Drop the last `count` tokens; to be called after every round, also with 0, for layers with a window."""
        if count or self.slides:
            self.cache.crop(-count)
        if count:
            del self.tokens[-count:]
        if count and self.states:
            self.states.forget(count)
        self.length -= count
        self.exact = min(self.exact, self.length)

    def replay(self, text: torch.Tensor) -> torch.Tensor:
        """Logits [1, V] after text [1, N], from the very passes of plain decoding; the cache is exact from then on."""
        if self.exact >= text.shape[1]:
            self.exact = text.shape[1] - 1
        if self.slides:  # what left a window cannot come back
            self.cache = DynamicCache(config=self.model.config.text_config)
            self.length = self.exact = 0
            logits = self.start(text[:, : self.prompt])
        else:
            self.forget(self.length - self.exact)
        for token in text[0, self.length :].tolist():
            logits = self.read([token])
            self.forget(0)
        return logits

    @property
    def slides(self) -> bool:
        return any(self.cache.is_sliding)

    def forward(self, ids: torch.Tensor, **options) -> torch.Tensor:
        """One token as plain decoding reads it, or several at once."""
        with using(self.model, "full"), self.hearing():
            if self.walk and ids.shape[1] == 1 and self.length:
                return self.walk(ids)
            return self.model(ids, use_cache=True, **options, **cache_argument(self.cache)).logits[0]

    @cached_property
    def walk(self) -> Walk | None:
        """The quickest way to read one token; None where the model has none."""
        model = self.model
        way = model.way(1, True, model.device.type)
        if not (plain_model(model) and way.quick and way.step == "full"):
            return None
        decoder = model.decoders.of(model, self.cache)
        return decoder and Walk(model, way, decoder, self.cache)

    def hearing(self):
        return self.states.hearing(self.model.backbone.decoder.norm) if self.states else nullcontext()
