"""H-Net's stage by its paper's equations (arXiv 2507.07955): values and gradients."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from laval.models import ShortenedConfig, ShortenedForCausalLM
from laval.shorten import Nothing, Rows
from tests.tiny import exact, tiny_config

LEVEL = {"rule": {"name": "cosine"}, "reduce": "last", "upsample": "smooth", "start": "forced", "skip": "linear"}


def model_and_rows() -> tuple[ShortenedForCausalLM, Rows]:
    torch.manual_seed(0)
    config = ShortenedConfig("1@1 2@3 1@1", LEVEL, text_config=tiny_config("llama"), attn_implementation="sdpa")
    model = ShortenedForCausalLM(config)
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, mean=float("norm" in name), std=0.2)
    model = exact(model.double().eval())
    ids = torch.randint(0, 128, (1, 17))
    return model, Rows(model.kind.embed(ids), torch.tensor([17]), torch.tensor([0]), ids)


def stage(level, rows: Rows) -> torch.Tensor:
    """The published equations for one stream, row by row."""
    x = level.outer(rows, Nothing()).x[0]
    q, k = x @ level.commit.queries.weight.T, x @ level.commit.keys.weight.T
    p = torch.cat((torch.ones(1).double(), (1 - F.cosine_similarity(q[1:], k[:-1], dim=-1)) / 2))
    b = p >= 0.5
    chosen = x[b][None]
    counts = torch.tensor([chosen.shape[1]])
    z = level.inner(Rows(chosen, counts, torch.tensor([0]), rows.ids[:, b]), Nothing())[0].x[0]
    smoothed, before = [], torch.zeros_like(z[0])
    for row, share in zip(z, p[b], strict=True):
        before = share * row + (1 - share) * before
        smoothed.append(before)
    c = torch.where(b, p, 1 - p)
    upsampled = torch.stack(smoothed)[b.cumsum(0) - 1] * (c + (1 - c).detach())[:, None]
    y = upsampled + F.linear(x, level.skip.weight, level.skip.bias)
    return level.outward(rows.having(y[None]), Nothing()).x


def test_a_stage_is_the_published_one():
    model, rows = model_and_rows()
    found, (commits,) = model.stacks(rows, Nothing())
    assert 0.1 < commits.bits.double().mean() < 0.9 and commits.bits[0, 0]
    torch.testing.assert_close(found.x, stage(model.stacks, rows), rtol=0, atol=1e-10)


def test_its_gradients_are_too():
    gradients = []
    for forward in (lambda level, rows: level(rows, Nothing())[0].x, stage):
        model, rows = model_and_rows()
        (forward(model.stacks, rows) * torch.linspace(-1, 1, 64).double()).sum().backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-8, atol=1e-9)
    assert gradients[0]["stacks.commit.queries.weight"].abs().max() > 1e-4


def test_the_skip_starts_at_zero():
    config = ShortenedConfig("1@1 2@3 1@1", LEVEL, text_config=tiny_config("llama"))
    assert not ShortenedForCausalLM(config).stacks.skip.weight.any()
