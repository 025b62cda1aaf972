"""Norms in few passes over memory equal the plain ones."""

from __future__ import annotations

import pytest
import torch

from laval.ops.norms import two_pass_rms_norm


@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 5, 6), (0, 6)])
def test_two_pass_rms_norm(shape, size):
    torch.manual_seed(0)
    x, weight = torch.randn(shape).double() * size, torch.randn(6).double()
    expected = x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight
    before = x.clone()
    torch.testing.assert_close(two_pass_rms_norm(x, weight, 1e-5), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(x, before)
