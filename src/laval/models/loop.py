"""The loop of `generate` for one sequence: what transformers asks anew for every token is asked once."""

from __future__ import annotations

import torch
from transformers import EosTokenCriteria, GenerationMixin, MaxLengthCriteria
from transformers.cache_utils import DynamicCache

from laval.blocks import Context
from laval.compat import CACHE

TURNS = 64
"""Positions whose rotation is computed at one go."""
STATIC_ROPE = ("default", "linear", "llama3", "yarn")  # others look at how long the sequence is
KNOWN = {CACHE, "attention_mask", "position_ids", "use_cache", "logits_to_keep", "synced_gpus", "streamer"}


class OneSequence(GenerationMixin):
    """`generate` of one sequence without pads walks the lanes token by token; the rest is transformers' own."""

    def _sample(self, input_ids, logits_processor, stopping_criteria, generation_config, **others):
        walk = walk_of(self, input_ids, generation_config, others)
        if walk is None:
            return super()._sample(input_ids, logits_processor, stopping_criteria, generation_config, **others)
        streamer = others.pop("streamer", None)
        others.pop("synced_gpus", None)
        logits = self._prefill(input_ids, generation_config, others).logits[:, -1]
        choose = drawn if generation_config.do_sample else likeliest
        return text(walk, logits, input_ids, logits_processor, Stop(stopping_criteria), choose, streamer)


def text(walk, logits, ids, processors, stop, choose, streamer) -> torch.Tensor:
    """ids [1, T] and what follows, from the logits [1, V] of their last token on."""
    while True:
        token = choose(scores(logits, ids, processors))  # [1]
        ids = torch.cat((ids, token[:, None]), dim=1)
        done = stop(ids)
        if streamer is not None:
            streamer.put(token.cpu())
        if done:
            break
        logits = walk(token[:, None])
    if streamer is not None:
        streamer.end()
    return ids


def scores(logits: torch.Tensor, ids: torch.Tensor, processors) -> torch.Tensor:
    """Processors may write into what they are given, and expect float32."""
    return processors(ids, logits.to(torch.float32, copy=True)) if len(processors) else logits


def likeliest(found: torch.Tensor) -> torch.Tensor:
    return found.argmax(-1)


def drawn(found: torch.Tensor) -> torch.Tensor:
    return torch.multinomial(found.float().softmax(-1), num_samples=1).squeeze(1)


class Stop:
    """Transformers' stopping criteria for one sequence; its two most common ones without tensors."""

    def __init__(self, criteria):
        self.longest = min((each.max_length for each in criteria if type(each) is MaxLengthCriteria), default=None)
        ends = [each.eos_token_id.tolist() for each in criteria if type(each) is EosTokenCriteria]
        self.ends = {token for found in ends for token in found}
        self.others = [each for each in criteria if type(each) not in (MaxLengthCriteria, EosTokenCriteria)]

    def __call__(self, ids: torch.Tensor) -> bool:
        """Whether the text ids [1, T] ends here; every criterion sees every text, as in transformers."""
        other = [bool(each(ids, None).all()) for each in self.others]
        long = self.longest is not None and ids.shape[1] >= self.longest
        return long or int(ids[0, -1]) in self.ends or any(other)


class Walk:
    """The model's forward for the one sequence in `cache`: a token in, its logits out."""

    def __init__(self, model, way, decoder, cache: DynamicCache):
        self.model, self.way, self.decoder, self.cache = model, way, decoder, cache
        self.start, self.turns = 0, ()

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """ids [1, 1] -> logits [1, V]."""
        x = self.model.quick.embed(ids)  # [1, 1, D]
        x, taken = self.decoder(self.way.step, x, self.contexts(x), self.cache)
        self.model.note(taken, ids)
        return self.model.quick.head(x, 1)[:, -1]

    def contexts(self, x: torch.Tensor) -> list[Context]:
        """What `Backbone.contexts` gives for the next position, without a mask: a single row sees all before it."""
        place = self.cache.get_seq_length() - self.start
        if not 0 <= place < len(self.turns):
            self.start, place = self.start + place, 0
            self.turns = self.turned(x, self.start)
        return [Context(None, *self.turns[place], self.cache)] * len(self.model.quick.blocks)

    def turned(self, x: torch.Tensor, start: int) -> list[tuple[torch.Tensor, ...]]:
        """cos and sin [1, 1, Dh], and the position [1, 1], of each of the next positions."""
        positions = torch.arange(start, start + TURNS, device=x.device)[None]
        backbone = self.model.quick
        (kind,) = set(backbone.layer_types())
        turn = backbone.kernels.turn(*backbone.rotary(x, positions)[kind])
        return list(zip(*(each.split(1, dim=1) for each in (*turn, positions)), strict=True))


def walk_of(model, ids: torch.Tensor, config, others: dict) -> Walk | None:
    """A walk for the call of `_sample` with these arguments; None where more than that was asked for."""
    cache = others.get(CACHE)
    if not (plain_call(ids, config, others) and plain_model(model) and type(cache) is DynamicCache):
        return None
    way = model.way(1, True, model.device.type)
    if not way.quick or way.step not in ("full", "conditional"):
        return None
    decoder = model.decoders.of(model, cache)
    return None if decoder is None else Walk(model, way, decoder, cache)


def plain_call(ids: torch.Tensor, config, others: dict) -> bool:
    """One sequence, all of it given, nothing hidden in it or moved, and nothing wanted but tokens."""
    mask, positions = others.get("attention_mask"), others.get("position_ids")
    whole = mask is None or (mask.shape == ids.shape and bool(mask.all()))
    counted = positions is None or positions.tolist() == [list(range(ids.shape[1]))]
    alone = len(ids) == 1 and ids.shape[1] > 0 and others.get("use_cache") and not others.get("synced_gpus")
    usual = KNOWN.issuperset(name for name, value in others.items() if value is not None)
    more = (config.return_dict_in_generate, config.prefill_chunk_size, config.is_assistant)
    return bool(alone and usual and whole and counted and not any(more))


def plain_model(model) -> bool:
    """Whether no layer hides what is far, and nobody listens to the model's own forward."""
    rotary = getattr(model.quick.decoder, "rotary_emb", None)
    static = getattr(rotary, "rope_type", None) in STATIC_ROPE
    heard = model._forward_hooks or model._forward_pre_hooks or "forward" in vars(model)
    return static and not heard and set(model.quick.layer_types()) == {"full_attention"}
