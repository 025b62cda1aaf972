"""What holds for every shortened model: nothing leaks; however a text is cut, padded or batched, it is the same."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

from laval.compat import output_cache
from laval.models import ShortenedForCausalLM
from tests.invariants import harness
from tests.invariants.harness import CUTS, PADS, assert_near, forward, in_pieces, outcome, padded_prompt, prompt
from tests.invariants.shortened import QUICK, Shortened, given_bits, parameters

FORWARD = [check for check in harness.FORWARD if check is not harness.checkpointing_changes_no_gradient]


@pytest.mark.parametrize("check", FORWARD, ids=lambda check: check.__name__)
@pytest.mark.parametrize("subject", parameters())
def test_forward(check, subject):
    if subject.rule == "uncertainty" and check is harness.bfloat16_is_finite:
        pytest.skip("its check gives embeddings, and the rule reads tokens")
    check(subject)


@pytest.mark.parametrize("check", harness.GENERATION, ids=lambda check: check.__name__)
@pytest.mark.parametrize("subject", QUICK, ids=str)
def test_generation(check, subject):
    check(subject)


@pytest.mark.parametrize("subject", QUICK, ids=str)
@torch.no_grad()
def test_pads_may_stand_anywhere(subject):
    """Behind a text, or inside it: the model sees the rest as if they were not there."""
    model, ids = subject(), prompt()
    mask = torch.ones_like(ids)
    mask[0, -5:] = 0
    mask[1, 3:6] = 0
    mask[2, ::2] = 0
    together = outcome(forward(model, ids * mask, mask))
    steps = in_pieces(model, ids * mask, mask, CUTS["chunks"])
    for row in range(len(ids)):
        kept = mask[row].bool()
        alone = outcome(forward(model, ids[row][kept][None]))[0]
        assert_near(together[row][kept], alone)
        assert_near(steps[row][kept], alone)


@pytest.mark.parametrize("subject", QUICK, ids=str)
@torch.no_grad()
def test_given_commits_are_replayed(subject):
    """Whole, in steps, and left-padded, the outcome is that of the given commits."""
    model, bits, (ids, mask) = subject(), given_bits(), padded_prompt()
    output = model(ids, attention_mask=mask, boundaries=bits)
    forced = (ids != 0) & (mask.cumsum(1) == 1) if subject.start == "forced" else torch.zeros_like(bits)
    assert torch.equal(output.boundaries, (bits | forced) & mask.bool())
    cache, found = None, []
    for t in range(ids.shape[1]):
        step = forward(model, ids[:, t : t + 1], mask[:, : t + 1], cache, True, boundaries=bits[:, t : t + 1])
        cache = output_cache(step)
        found.append(step.logits)
    real = mask.bool()
    assert_near(torch.cat(found, 1)[real], output.logits[real])
    for row, pads in enumerate(PADS):
        alone = model(ids[row : row + 1, pads:], boundaries=bits[row : row + 1, pads:])
        assert_near(alone.logits[0], output.logits[row, pads:])


@pytest.mark.parametrize("subject", QUICK, ids=str)
@torch.no_grad()
def test_a_cache_is_reordered_repeated_and_chosen_from(subject):
    model, (ids, mask) = subject(), padded_prompt()
    cache = output_cache(forward(model, ids[:, :-1], mask[:, :-1], use_cache=True))
    whole = outcome(forward(model, ids, mask))[:, -1]
    order = torch.tensor([2, 0, 1])
    changes = {
        "reorder_cache": (order, order),
        "batch_repeat_interleave": (2, torch.tensor([0, 0, 1, 1, 2, 2])),
        "batch_select_indices": (order[:2], order[:2]),
    }
    for name, (argument, rows) in changes.items():
        changed = deepcopy(cache)
        getattr(changed, name)(argument)
        assert_near(outcome(forward(model, ids[rows, -1:], mask[rows], changed, True))[:, 0], whole[rows])


@pytest.mark.parametrize("subject", QUICK, ids=str)
def test_gradients_with_a_cache_are_those_without(subject):
    """A forward in evaluation mode may open a cache; what it returns can be differentiated all the same."""
    gradients = []
    for use_cache in (False, True):
        model = deepcopy(subject())
        model(prompt(), labels=prompt(), use_cache=use_cache).loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert_near(gradients[1][name], gradient, 1e-9)


@pytest.mark.parametrize("subject", QUICK, ids=str)
def test_checkpointing_changes_no_gradient(subject):
    gradients = []
    for checkpointing in (None, {"use_reentrant": False}):
        model = deepcopy(subject()).train()
        if checkpointing:
            harness.switch_checkpointing_on(model, checkpointing)
        torch.manual_seed(0)  # Gumbel's samples
        model(prompt(), labels=prompt()).loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        assert_near(gradients[1][name], gradient, 1e-9)


@pytest.mark.parametrize("subject", [*QUICK[:4], QUICK[5], QUICK[9]], ids=str)
@torch.no_grad()
def test_saved_and_loaded(subject: Shortened, tmp_path):
    model = subject(torch.float32)
    model.save_pretrained(tmp_path)
    again = ShortenedForCausalLM.from_pretrained(tmp_path).eval()
    assert again.config.to_dict()["levels"] == model.config.to_dict()["levels"]
    torch.testing.assert_close(again(prompt()).logits, model(prompt()).logits, rtol=1e-4, atol=1e-4)
