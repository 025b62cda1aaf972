"""The dynamic-pooling authors' own outputs, from their weights: logits, chances, losses, and Gumbel's gradient."""

from __future__ import annotations

import json

import pytest
import torch
from torch.nn import functional as F

from laval.models.dynamic_pooling import KINDS, load_dynamic_pooling
from laval.models.weights import read_tensors
from tests.conftest import shared_path


def recorded(kind: str) -> tuple[dict[str, torch.Tensor], dict]:
    path = shared_path("parity", f"dpt_{kind}.safetensors")
    sizes = json.loads(shared_path("parity", "dpt_manifest.json").read_text())[kind]
    return read_tensors(path), {**sizes, "fixed_sf": 3}


def near(ours, theirs, atol):
    torch.testing.assert_close(ours, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_losses(kind):
    found, sizes = recorded(kind)
    model = load_dynamic_pooling(found, sizes, kind)
    assert model.dtype == torch.float64
    replayed = found["boundary_hard"] if kind == "gumbel" else None  # the others decide as they did
    output = model(found["data"], boundaries=replayed)
    near(output.logits, found["logits"], 1e-7)
    near(F.cross_entropy(output.logits.mT, found["target"], reduction="none"), found["loss"], 1e-7)


@pytest.mark.parametrize("kind", ["whitespaces", "fixed"])
def test_rules_decide_as_recorded(kind):
    found, sizes = recorded(kind)
    output = load_dynamic_pooling(found, sizes, kind)(found["data"])
    assert torch.equal(output.boundaries, found["boundary_given"])


@pytest.mark.parametrize("kind", ["unigram", "entropy"])
def test_chances_of_a_commit(kind):
    found, sizes = recorded(kind)
    output = load_dynamic_pooling(found, sizes, kind)(found["data"])
    near(output.chances, found["boundary_soft"], 1e-9)
    assert torch.equal(output.boundaries, found["boundary_hard"].bool())


def test_the_authors_losses_are_the_legacy_ones():
    """Their supervised losses go through two sigmoids; the binomial prior is as in the paper."""
    for kind in ("unigram", "entropy", "gumbel"):
        found, sizes = recorded(kind)
        model = load_dynamic_pooling(found, sizes, kind)
        (rule,) = model.rules()
        rule.legacy = True
        output = model(found["data"], boundaries=found["boundary_hard"].double())
        labels = {"unigram": found.get("boundary_given"), "entropy": None, "gumbel": None}[kind]
        labels = rule.labels(output.logits) if kind == "entropy" else labels
        near(rule.loss(output.commits[0], labels), found["loss_boundaries"][0], 1e-6)  # recorded in float32


def test_the_gradient_by_gumbels_commits():
    found, sizes = recorded("gumbel")
    model = load_dynamic_pooling(found, sizes, "gumbel")
    soft = found["boundary_soft"].double().requires_grad_()
    logits = model(found["data"], boundaries=soft).logits
    F.cross_entropy(logits.mT, found["target"]).backward()
    near(soft.grad, found["grad_soft_boundary_from_lm_loss"], 1e-8)
    assert soft.grad.abs().max() > 0.01


def test_a_file_is_read_and_the_kind_is_told_by_the_weights():
    path, (found, sizes) = shared_path("parity", "dpt_unigram.safetensors"), recorded("unigram")
    near(load_dynamic_pooling(path, sizes)(found["data"]).logits, found["logits"], 1e-7)


def test_what_does_not_fit_is_refused():
    found, sizes = recorded("unigram")
    with pytest.raises(ValueError, match="expected one of none, fixed"):
        load_dynamic_pooling(found, sizes, "spaces")
    with pytest.raises(ValueError, match="config lacks d_inner"):
        load_dynamic_pooling(found, {key: value for key, value in sizes.items() if key != "d_inner"}, "unigram")
    with pytest.raises(ValueError, match="missing.*commit.hidden|unexpected"):
        load_dynamic_pooling(found, sizes, "whitespaces")
    with pytest.raises(ValueError, match="unexpected: weights.odd|unexpected: odd"):
        load_dynamic_pooling({**found, "weights.odd": found["logits"]}, sizes, "unigram")
    with pytest.raises(ValueError, match="of another shape"):
        load_dynamic_pooling(found, {**sizes, "n_token": 26}, "unigram")
