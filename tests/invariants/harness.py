"""What must hold for every model and plug-in, whatever it skips or shortens.

A check takes a factory: `make(dtype=torch.float64)` hands out a model in eval mode that the check may not change
(it changes a copy). To add a model, write a factory (see `subjects.py`) and run it through `FORWARD` and `GENERATION`.
"""

from __future__ import annotations

from copy import deepcopy

import torch

from laval.compat import cache_argument, output_cache

ATOL = 1e-10
LENGTH = 14  # longer than the sliding windows of the tiny models
PADS = (0, 4, 9)  # of each row in a padded batch; the last row is shorter than the window
NEW = 6  # tokens to generate
CUTS = {"steps": [1] * LENGTH, "chunks": [9, 1, 4], "prefill": [LENGTH - 1, 1]}


# Inputs and calls.


def prompt(batch: int = len(PADS), length: int = LENGTH, seed: int = 1) -> torch.Tensor:
    """Token ids [B, T] without pads or special tokens."""
    return torch.randint(3, 128, (batch, length), generator=torch.Generator().manual_seed(seed))


def padded_prompt() -> tuple[torch.Tensor, torch.Tensor]:
    """Left-padded ids and their mask, both [B, T]."""
    ids = prompt()
    mask = (torch.arange(LENGTH) >= torch.tensor(PADS)[:, None]).long()
    return ids * mask, mask


def positions_of(mask: torch.Tensor) -> torch.Tensor:
    return (mask.cumsum(-1) - 1).clamp(min=0)


def forward(model, ids, mask=None, cache=None, use_cache=False, **kwargs):
    """One forward over the last tokens of mask [B, S]; ids are those not yet in the cache."""
    if mask is not None:
        kwargs |= {"attention_mask": mask, "position_ids": positions_of(mask)[:, -ids.shape[1] :]}
    return model(input_ids=ids, use_cache=use_cache, **cache_argument(cache), **kwargs)


def outcome(output) -> torch.Tensor:
    """Logits and, behind them, the routers' gates, which show a leak before it flips a decision: [B, T, V + gates]."""
    gates = [route.gate for route in getattr(output, "routes", None) or () if route.gate is not None]
    return torch.cat((output.logits, *(gate[..., None].to(output.logits.dtype) for gate in gates)), dim=-1)


def in_pieces(model, ids, mask, lengths, read=outcome) -> torch.Tensor:
    """What is read from one forward per piece, each over the cache that the pieces before it filled: [B, T, ...]."""
    cache, pieces, start = None, [], 0
    for length in lengths:
        stop = start + length
        seen = None if mask is None else mask[:, :stop]
        output = forward(model, ids[:, start:stop], seen, cache, use_cache=True)
        cache, start = output_cache(output), stop
        pieces.append(read(output))
    return torch.cat(pieces, dim=1)


def assert_near(ours: torch.Tensor, theirs: torch.Tensor, atol: float = ATOL) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


# Forward.


@torch.no_grad()
def the_future_never_leaks(make):
    """Row t of a batch has token t changed: its outcome differs from t on, and nowhere before."""
    ids = prompt(1)
    changed = ids.repeat(LENGTH + 1, 1)
    each = torch.arange(LENGTH)
    changed[each, each] = 3 + (changed[each, each] + 50) % 125
    found = outcome(forward(make(), changed))
    moved = (found[:-1] - found[-1]).abs().amax(-1)  # [changed token, position]
    assert moved.tril(-1).max() <= 1e-12
    assert moved.diagonal().min() > 1e-4


@torch.no_grad()
def the_past_is_read(make):
    """The last outcome depends on the token before them: a model that looks at nothing would pass the rest."""
    ids = prompt(1)
    other = ids.clone()
    other[0, -2] = 3 + (ids[0, -2] + 50) % 125
    model = make()
    assert (outcome(forward(model, ids))[0, -1] - outcome(forward(model, other))[0, -1]).abs().max() > 1e-4


@torch.no_grad()
def cached_equals_uncached(make):
    """Without pads, in single steps, in chunks, and as a prefill with one step."""
    model, ids = make(), prompt()
    whole = outcome(forward(model, ids))
    for lengths in CUTS.values():
        assert_near(in_pieces(model, ids, None, lengths), whole)


@torch.no_grad()
def cached_equals_uncached_padded(make):
    model, (ids, mask) = make(), padded_prompt()
    whole = outcome(forward(model, ids, mask))[mask.bool()]
    for cut in ("steps", "chunks"):
        assert_near(in_pieces(model, ids, mask, CUTS[cut])[mask.bool()], whole)


@torch.no_grad()
def padded_batch_equals_single(make):
    """Every row of a left-padded batch is what it would be alone and without pads."""
    model, (ids, mask) = make(), padded_prompt()
    together = outcome(forward(model, ids, mask))
    for row, pads in enumerate(PADS):
        assert_near(together[row, pads:], outcome(forward(model, ids[row : row + 1, pads:]))[0])


@torch.no_grad()
def batch_equals_single(make):
    model, ids = make(), prompt()
    together = outcome(forward(model, ids))
    for row in range(len(ids)):
        assert_near(together[row], outcome(forward(model, ids[row : row + 1]))[0])


def checkpointing_changes_no_gradient(make):
    """Reentrant or not; whatever the depth penalty reads must keep its gradient too."""
    plain, calls = gradients(make())
    for reentrant in (False, True):
        again, more_calls = gradients(make(), {"use_reentrant": reentrant})
        assert more_calls == 2 * calls  # computed again, so it really was switched on
        assert again.keys() == plain.keys()
        for name, gradient in plain.items():
            torch.testing.assert_close(again[name], gradient, rtol=1e-9, atol=ATOL)
    assert all(gradient.abs().max() > 0 for gradient in plain.values())


def gradients(model, checkpointing: dict | None = None) -> tuple[dict[str, torch.Tensor], int]:
    """Of the loss and a depth penalty, by parameter; and how often the last layer's input norm was called."""
    model, calls = deepcopy(model).train(), []
    model.get_decoder().layers[-1].input_layernorm.register_forward_hook(lambda *_: calls.append(1))
    if checkpointing is not None:
        switch_checkpointing_on(model, checkpointing)
    output, embeds = with_loss(model)
    (output.loss + penalty(output)).backward()
    trained = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"inputs_embeds": embeds.grad, **trained}, len(calls)


def with_loss(model, **kwargs):
    """A forward over a padded batch with labels, and the input embeddings it can be differentiated by."""
    ids, mask = padded_prompt()
    embeds = model.get_input_embeddings()(ids).detach().requires_grad_()
    labels = ids.masked_fill(mask * mask.roll(1, dims=1) == 0, -100)  # nor is a pad asked for the first token
    positions = positions_of(mask)
    output = model(
        inputs_embeds=embeds, attention_mask=mask, position_ids=positions, labels=labels, use_cache=False, **kwargs
    )
    return output, embeds


def switch_checkpointing_on(model, kwargs: dict) -> None:
    """Under the name of transformers 5.24, or the one before."""
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(kwargs)
    else:
        model.gradient_checkpointing_enable(kwargs)


def penalty(output) -> torch.Tensor | float:
    gates = [route.gate for route in output.routes if route.gate is not None]
    return sum(gates)[padded_prompt()[1].bool()].square().mean() if gates else 0.0


def bfloat16_is_finite(make):
    """Logits, loss and gradients, with pads in the batch."""
    model = deepcopy(make(dtype=torch.bfloat16))
    output, embeds = with_loss(model)
    output.loss.backward()
    assert output.logits.dtype == torch.bfloat16
    assert output.logits.isfinite().all() and output.loss.isfinite() and embeds.grad.isfinite().all()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


# Generation.


def generate(model, ids, mask=None, **kwargs) -> torch.Tensor:
    """The new tokens, [B, NEW]; greedy unless told otherwise."""
    mask = torch.ones_like(ids) if mask is None else mask
    options = {"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW, "pad_token_id": 0}
    return model.generate(ids, attention_mask=mask, **{**options, **kwargs})[:, ids.shape[1] :]


def greedy_needs_no_cache(make):
    model, (ids, mask) = make(), padded_prompt()
    tokens = generate(model, ids, mask)
    assert torch.equal(tokens, generate(model, ids, mask, use_cache=False))
    assert len(set(tokens.flatten().tolist())) >= 3  # one token repeated would prove little


def greedy_padded_equals_single(make):
    model, (ids, mask) = make(), padded_prompt()
    together = generate(model, ids, mask)
    for row, pads in enumerate(PADS):
        assert torch.equal(together[row], generate(model, ids[row : row + 1, pads:])[0])


def sampling_follows_its_seed(make):
    model, (ids, mask) = make(), padded_prompt()
    tokens = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        tokens.append(generate(model, ids, mask, do_sample=True))
    assert torch.equal(tokens[0], tokens[1]) and not torch.equal(tokens[0], tokens[2])


def beams_need_no_cache(make):
    model, (ids, mask) = make(), padded_prompt()
    beams = {"num_beams": 3, "num_return_sequences": 3}
    tokens = generate(model, ids, mask, **beams)
    assert torch.equal(tokens, generate(model, ids, mask, **beams, use_cache=False))
    assert len(tokens.unique(dim=0)) == 3 * len(ids)


FORWARD = [
    the_future_never_leaks,
    the_past_is_read,
    cached_equals_uncached,
    cached_equals_uncached_padded,
    padded_batch_equals_single,
    batch_equals_single,
    checkpointing_changes_no_gradient,
    bfloat16_is_finite,
]
GENERATION = [greedy_needs_no_cache, greedy_padded_equals_single, sampling_follows_its_seed, beams_need_no_cache]
