"""What a learned policy must beat: static sets of layers, and the same adapters under random routes."""

from __future__ import annotations

import torch
from torch.nn import functional as F
from tqdm import tqdm

from laval.blocks import Context, backbone_of
from laval.evaluate.reader import BackboneReader, reader_of, wide
from laval.evaluate.text import as_batches
from laval.models import AdaptiveForCausalLM
from laval.models.checks import check_adaptive
from laval.models.switches import evaluating
from laval.skip import Route, SkipPolicy
from laval.skip.fixed import check_seed, coin
from laval.skip.policy import NEVER_SKIPPED, is_number


def block_influence(model, batches, progress: bool = True) -> list[float]:
    """How much each layer of the dense model turns its input, one number per layer: 1 - mean cos(X_l, X_{l+1}).

    batches: ids [B, T], mappings with input_ids and attention_mask, or Batch; pads never count.
    Source: ShortGPT (arXiv 2403.03853), equation 1.
    """
    reader, batches = dense_reader(model), as_batches(batches)
    sums, tokens = torch.zeros(reader.layers, dtype=torch.float64), 0
    with evaluating(reader.model):
        for batch in tqdm(batches, "block influence", disable=not progress, leave=False):
            x, contexts = start(reader, batch)
            for block, context in zip(reader.backbone.blocks, contexts, strict=True):
                before, x = x, block(x, context)
                likeness = F.cosine_similarity(wide(before), wide(x), dim=-1)  # [B, T]
                sums[block.index] += (1 - likeness)[batch.valid.to(x.device)].double().sum().cpu()
            tokens += int(batch.valid.sum())
    return (sums / tokens).tolist()


def shortgpt_layers(model, batches, drop: int, progress: bool = True) -> tuple[int, ...]:
    """The `drop` layers of least block influence, least first; never layer 0, which always runs here."""
    influence = block_influence(model, batches, progress)
    check_drop(drop, len(influence))
    return tuple(sorted(removable(range(len(influence))), key=influence.__getitem__)[:drop])


def greedy_layers(model, batches, drop: int, progress: bool = True) -> tuple[int, ...]:
    """The `drop` layers that greedy removal takes out of the dense model, in that order: the first k are the set of k.

    Each step tries every layer left, except 0, and removes the one without which the calibration loss is least.
    """
    reader, batches = dense_reader(model), as_batches(batches)
    check_drop(drop, reader.layers)
    kept, order = list(range(reader.layers)), []
    with evaluating(reader.model), tqdm(total=drop * len(batches), desc="greedy", disable=not progress) as bar:
        for _ in range(drop):
            losses = removal_losses(reader, batches, kept, bar)
            order.append(min(losses, key=losses.__getitem__))
            kept.remove(order[-1])
    return tuple(order)


def removal_losses(reader: BackboneReader, batches, kept: list[int], bar) -> dict[int, float]:
    """Total nats when one more of the `kept` layers is removed, by layer. What lies below a candidate runs once."""
    losses = dict.fromkeys(removable(kept), 0.0)
    blocks = reader.backbone.blocks
    for batch in batches:
        x, contexts = start(reader, batch)
        for i, layer in enumerate(kept):
            if layer in losses:
                y = x
                for upper in kept[i + 1 :]:
                    y = blocks[upper](y, contexts[upper])
                losses[layer] += float(reader.nats(y, batch).sum())
            x = blocks[layer](x, contexts[layer])
        bar.update()
    return losses


def dense_reader(model) -> BackboneReader:
    """A reader of the untouched base. ValueError for a family that laval does not know."""
    base = model.base if isinstance(model, AdaptiveForCausalLM) else model
    reader = reader_of(base)
    return reader if isinstance(reader, BackboneReader) else BackboneReader(base, backbone_of(base))


def start(reader: BackboneReader, batch) -> tuple[torch.Tensor, list[Context]]:
    """What the first layer reads, x [B, T, D], and every layer's context."""
    inputs = batch.to(reader.model.device).arguments
    x = reader.backbone.embed(inputs["input_ids"])
    return x, reader.backbone.contexts(x, inputs.get("attention_mask"), inputs.get("position_ids"))


def removable(layers) -> list[int]:
    return [layer for layer in layers if layer != NEVER_SKIPPED]


def check_drop(drop: int, depth: int) -> None:
    if not 0 <= drop < depth:
        raise ValueError(f"drop is {drop}; expected 0 to {depth - 1}: the model has {depth} layers and layer 0 stays")


class RandomRoutesOf(SkipPolicy):
    """A learned policy's adapters and gates under routes drawn by a hash of seed, layer and position."""

    def __init__(self, policy: SkipPolicy, rate: float, seed: int):
        super().__init__(policy.layers)
        self.learned = policy
        self.keeps_kv = policy.keeps_kv
        self.rate, self.seed = rate, seed

    def route(self, index: int, z: torch.Tensor, context: Context) -> Route:
        run = coin(context.position_ids, index, self.seed) < self.rate
        return self.learned.replay(index, z, run.expand(z.shape[:2]))

    def adapt(self, index: int, u: torch.Tensor) -> torch.Tensor:
        return self.learned.adapt(index, u)


def random_routes(policy: SkipPolicy, rate: float, seed: int = 0) -> RandomRoutesOf:
    """`policy` with its routes replaced: a token runs a routed layer with probability `rate`. Weights are shared."""
    if not 0 <= rate <= 1:
        raise ValueError(f"rate is {rate}; expected a probability from 0 to 1")
    check_seed(seed)
    return RandomRoutesOf(policy, rate, seed)


def rate_for(model: AdaptiveForCausalLM, depth: float, length: int | None = None, seed: int = 0) -> float:
    """The rate at which random routes through `model.policy` have the wanted mean depth.

    In expectation; with `length`, exactly (to one token) for windows of that many tokens and this seed.
    ValueError for a depth that the routed layers cannot give.
    """
    share, layers = run_share(model, depth), model.policy.layers
    if length is None:
        return share
    coins = torch.cat([coin(torch.arange(length), layer, seed) for layer in layers]).sort().values
    run = round(share * len(coins))
    return 1.0 if run == len(coins) else float(coins[run])


def run_share(model: AdaptiveForCausalLM, depth: float) -> float:
    """The share of routed (token, layer) pairs that run at a mean depth."""
    check_adaptive(model)
    total, routed = len(model.backbone.blocks), len(model.policy.layers)
    if not routed or not is_number(depth) or not total - routed <= depth <= total:
        raise ValueError(
            f"depth is {depth!r}; expected {total - routed} to {total} layers: {routed} of {total} may be skipped"
        )
    return (depth - (total - routed)) / routed


def random_control(
    model: AdaptiveForCausalLM, depth: float, seed: int = 0, length: int | None = None
) -> AdaptiveForCausalLM:
    """`model` with random routes of the wanted mean depth, to be measured, not saved; all weights are shared."""
    return with_policy(model, random_routes(model.policy, rate_for(model, depth, length, seed), seed))


def with_policy(model: AdaptiveForCausalLM, policy: SkipPolicy) -> AdaptiveForCausalLM:
    """A second adaptive model over the same base, under another policy; `model` is left as it was."""
    other = AdaptiveForCausalLM(model.config, base=model.base)
    other.policy = policy
    other.runtime, other.tokenizer = model.runtime, model.tokenizer
    return other.train(model.training)
