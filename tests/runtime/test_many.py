"""A prompt longer than a few rows: quick kernels for many rows give what the reference gives, given equal routes."""

from __future__ import annotations

import pytest
import torch

from laval import FlexiDepth, attach
from laval.models.switches import using
from laval.runtime import choose
from tests.tiny import FAMILIES, implementations, tiny_model

LENGTH, ROUTED = 40, (1, 2, 3)
WIDTHS = {"layers": ROUTED, "router_width": 8, "adapter_width": 8}


def made(family: str, dtype: torch.dtype = torch.float64, **options):
    model = attach(
        tiny_model(family, dtype, attn_implementation=implementations(family)[-1]), FlexiDepth(**WIDTHS, **options)
    )
    torch.manual_seed(3)
    for parameter in model.policy.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.to(dtype).eval()


def prompt(padded: bool):
    generator = torch.Generator().manual_seed(2)
    ids, mask = torch.randint(3, 128, (2, LENGTH), generator=generator), torch.ones(2, LENGTH, dtype=torch.long)
    mask[0, : 11 * padded] = 0
    return ids, mask, torch.rand(len(ROUTED), 2, LENGTH, generator=generator) < 0.5


def logits(model, runtime: str, ids, mask, routes):
    with using(model, runtime):
        return model(ids, attention_mask=mask, routes=routes).logits[mask.bool()]


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize(
    ("family", "keep_kv"),
    [(family, keep) for family in FAMILIES for keep in (True, False) if keep or family != "gemma2"],
)
@torch.no_grad()
def test_runtimes_agree(family, keep_kv, padded):
    model, (ids, mask, routes) = made(family, keep_kv=keep_kv), prompt(padded)
    expected = logits(model, "masked", ids, mask, routes)
    for runtime in ("grouped", "conditional", "auto"):
        torch.testing.assert_close(logits(model, runtime, ids, mask, routes), expected, rtol=0, atol=1e-10)
    assert (logits(model, "grouped", ids, mask, ~routes) - expected).abs().max() > 1e-3


@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3"])
@torch.no_grad()
def test_float32_is_close_and_full_is_the_base(family):
    model, (ids, mask, routes) = made(family, torch.float32), prompt(True)
    expected = logits(model, "masked", ids, mask, routes)
    torch.testing.assert_close(logits(model, "grouped", ids, mask, routes), expected, rtol=0, atol=1e-4)
    dense = logits(model, "dense", ids, mask, None)
    torch.testing.assert_close(logits(model, "full", ids, mask, None), dense, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("runtime", "rows", "gradient", "device", "kernels"),
    [
        ("auto", 1, False, "cpu", "few"),
        ("grouped", 32, False, "cpu", "few"),
        ("auto", 33, False, "cpu", "many"),
        ("full", 512, False, "cpu", "many"),
        ("masked", 512, False, "cpu", "stock"),
        ("grouped", 512, True, "cpu", "stock"),
        ("grouped", 512, False, "cuda", "stock"),
    ],
)
def test_kernels_by_rows(runtime, rows, gradient, device, kernels):
    assert choose(runtime, rows, gradient, device).kernels == kernels
