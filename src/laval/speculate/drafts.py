"""Drafts by the model itself, cheaper: with skipped layers, or with the first layers alone."""

from __future__ import annotations

from typing import Protocol

import torch

from laval.compat import cache_argument
from laval.models import AdaptiveForCausalLM, set_depth, skipping, using
from laval.runtime import choose
from laval.runtime.decoder import suits, turns_of
from laval.speculate.proposal import NOTHING, Proposal, source_of
from laval.speculate.reader import Reader


class Draft(Protocol):
    """A way of guessing the next tokens. share: of a dense pass, what a drafted token costs before it is measured."""

    name: str
    share: float

    def read(self, token: int, reader: Reader) -> torch.Tensor: ...
    def forget(self, count: int, reader: Reader) -> None: ...


def propose(draft: Draft, reader: Reader, text: torch.Tensor, rule, count: int) -> Proposal:
    """`count` tokens after text [1, N], whose last token the reader has not read; the cache stays as it is.

    rule: how tokens are chosen from scores, the dense model's own rule (`verify.Greedy` or `verify.Sampling`).
    """
    tokens, probabilities, token = [], [], int(text[0, -1])
    for _ in range(count):
        logits = draft.read(token, reader)  # [1, V]
        token, p = rule.draw(rule.scores(text, tokens, logits))
        tokens.append(token)
        probabilities.append(p)
    draft.forget(count, reader)
    if not tokens:
        return NOTHING
    drawn = torch.stack(probabilities) if probabilities[0] is not None else None
    return Proposal(tuple(tokens), tuple(source_of(draft.name, place) for place in range(1, count + 1)), drawn)


class SkipDraft:
    """The skipping model at a depth of its budget curve, by default the lowest.

    ValueError for a model that skips nothing, or whose skipped tokens leave no keys and values.
    """

    name = "skip"

    def __init__(self, model: AdaptiveForCausalLM, depth: float | None = None):
        check_skipping(model)
        self.model = model
        self.thresholds, self.depth = thresholds_at(model, depth)
        layers = len(model.backbone.blocks)
        self.share = (self.depth or layers - len(model.policy.layers) / 2) / layers

    def read(self, token: int, reader: Reader) -> torch.Tensor:
        """Logits [1, V] after one more token; its keys and values are the draft's, to be forgotten."""
        policy, ids = self.model.policy, torch.tensor([[token]], device=self.model.device)
        before = getattr(policy, "thresholds", None)
        try:
            if self.thresholds is not None:
                policy.thresholds = self.thresholds
            with skipping(self.model), using(self.model, "auto"):  # at thresholds that no rule was learned for
                return self.model(ids, use_cache=True, **cache_argument(reader.cache)).logits[0]
        finally:
            if before is not None:
                policy.thresholds = before

    def forget(self, count: int, reader: Reader) -> None:
        if count:
            reader.cache.crop(-count)


class ExitDraft:
    """The first `layers` layers, then the final norm and the head (LayerSkip, Elhoushi et al. 2024, section 3.3).

    Later layers see nothing of it, so nothing of theirs has to be forgotten. ValueError for a layer out of range.
    """

    name = "exit"

    def __init__(self, model: AdaptiveForCausalLM, layers: int | None = None):
        total = len(model.backbone.blocks)
        layers = max(1, total // 4) if layers is None else layers
        if not 1 <= layers < total:
            raise ValueError(f"exit layer is {layers}; expected 1 to {total - 1}, for the model has {total} layers")
        self.model, self.layers = model, layers
        head, block = bytes_of(model.get_output_embeddings()), bytes_of(model.backbone.blocks[0].layer)
        self.share = (layers * block + head) / (total * block + head)

    def read(self, token: int, reader: Reader) -> torch.Tensor:
        """Logits [1, V] after one more token, whose keys and values the first layers keep until they are forgotten."""
        model, cache = self.model, reader.cache
        way = choose("full", 1, torch.is_grad_enabled(), model.device.type)
        backbone = model.quick if way.quick else model.backbone
        x = backbone.embed(torch.tensor([[token]], device=model.device))  # [1, 1, D]
        contexts = backbone.contexts(x, cache=cache)[: self.layers]
        decoder = model.decoders.of(model, cache) if way.quick and suits(way.step, x, contexts, cache) else None
        if decoder is None:
            for block, context in zip(backbone.blocks, contexts, strict=False):
                x = block(x, context)
        else:
            x = through(decoder.lanes, x.view(-1), contexts, cache).view(1, 1, -1)
        return backbone.head(x)[0]

    def forget(self, count: int, reader: Reader) -> None:
        for layer in reader.cache.layers[: self.layers] if count else ():
            layer.crop(-count)


@torch.inference_mode()
def through(lanes, x: torch.Tensor, contexts, cache) -> torch.Tensor:
    """x [D] through the first lanes, as many as there are contexts."""
    for lane, turn, context in zip(lanes, turns_of(contexts), contexts, strict=False):
        x = lane(x, turn, context.mask, cache)
    return x


def bytes_of(module: torch.nn.Module) -> int:
    """What reading all its weights moves, whatever number types they are kept in."""
    return sum(kept.nbytes for kept in (*module.parameters(), *module.buffers()))


def check_skipping(model: AdaptiveForCausalLM) -> None:
    if not model.policy.layers:
        raise ValueError("draft is 'skip', but this model skips nothing; expected a plug-in, or draft='exit'")
    if not model.policy.keeps_kv:
        raise ValueError(
            "draft is 'skip', but skipped tokens of this plug-in leave no keys and values (keep_kv is False), so it "
            "and the dense model cannot share a cache; expected draft='lookup' or 'exit'"
        )


def thresholds_at(model: AdaptiveForCausalLM, depth: float | None) -> tuple[dict | None, float | None]:
    """The policy's thresholds at a depth of the budget curve, and that depth; the model stays as it is set.

    Without a curve, and without a depth, those that the model has.
    """
    policy, taus, rule = model.policy, model.config.taus, model.break_even
    before = getattr(policy, "thresholds", None)
    if depth is None and model.config.curve:
        depth = min(point["depth"] for point in model.config.curve)
    if depth is None:
        return before, None
    try:
        depth = set_depth(model, depth)
        return policy.thresholds, depth
    finally:
        policy.thresholds, model.config.taus, model.break_even = before, taus, rule
