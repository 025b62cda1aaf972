"""Products of a few rows: equal to the plain ones, for every shape, layout and thread count."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from laval.ops.rows import MOST, blocked, few_rows_linear, linear, one_row_rms_norm, parted, project, rms_norm


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@given(rows=st.integers(1, MOST), inputs=st.integers(1, 40), outputs=st.integers(1, 60), bias=st.booleans())
def test_few_rows_equal_the_plain_product(rows, inputs, outputs, bias):
    torch.manual_seed(0)
    x, weight = torch.randn(rows, inputs).double(), torch.randn(outputs, inputs).double()
    added = torch.randn(outputs).double() if bias else None
    with torch.no_grad():
        torch.testing.assert_close(few_rows_linear(x, weight, added), F.linear(x, weight, added), rtol=0, atol=1e-12)


@pytest.mark.parametrize("threads", [1, 2, 3, 4], indirect=True)
@pytest.mark.parametrize("shape", [(6,), (1, 6), (1, 1, 6), (4, 2, 6), (0, 6)])
def test_any_leading_shape_on_any_number_of_threads(shape, threads):
    x, weight = torch.randn(shape).double(), torch.randn(12, 6).double()
    y = few_rows_linear(x, weight)
    assert y.shape == (*shape[:-1], 12)
    torch.testing.assert_close(y, F.linear(x, weight), rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", [lambda w: w.t().contiguous().t(), lambda w: w.narrow(0, 2, 8), lambda w: w[::2]])
def test_any_layout(make):
    weight, x = make(torch.randn(16, 6).double()), torch.randn(6, 5).double().t()
    torch.testing.assert_close(few_rows_linear(x, weight), F.linear(x, weight), rtol=0, atol=1e-12)


def test_parts_are_even_and_keep_all_threads_busy():
    assert parted(49152, 2) == 2 and parted(577, 2) == 1 and parted(10, 1) == 1
    assert parted(9, 6) == 1 and parted(36, 8) == 1 and parted(48, 8) == 8 and parted(576, 16) == 16


def test_blocks_are_even_and_small():
    assert blocked(49152, 2) == 192 and blocked(576, 2) == 2 and blocked(1536, 2) == 6 and blocked(192, 4) == 4
    assert blocked(4 * 1009, 4) == parted(4 * 1009, 4)  # a prime's blocks would be single rows


@pytest.mark.parametrize("threads", [1, 2, 4], indirect=True)
@pytest.mark.parametrize("shape", [(1200, 20), (20, 1200), (4036, 8)])
def test_every_number_of_rows_by_columns_or_by_blocks(shape, threads):
    weight = torch.randn(shape).double()
    for rows in range(1, MOST + 1):
        x = torch.randn(rows, shape[1]).double()
        torch.testing.assert_close(few_rows_linear(x, weight), F.linear(x, weight), rtol=0, atol=1e-11)


def test_the_bias_of_a_module_is_added_once_and_kept():
    module = nn.Linear(6, 8).double()
    before, x = module.bias.clone(), torch.randn(1, 6).double()
    for _ in range(2):
        torch.testing.assert_close(project(module, x), module(x), rtol=0, atol=1e-12)
    assert torch.equal(module.bias, before)


def test_a_module_that_is_more_than_linear_is_called():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    module, x = Doubled(6, 8), torch.randn(1, 6)
    assert torch.equal(project(module, x), module(x))


def test_gradients_and_half_precision_keep_to_the_plain_product():
    weight = torch.randn(8, 6, requires_grad=True)
    with torch.enable_grad():
        x = torch.randn(1, 6, requires_grad=True)
        linear(x, weight).square().sum().backward()
        expected = torch.autograd.grad(F.linear(x, weight).square().sum(), [x, weight])
    torch.testing.assert_close((x.grad, weight.grad), tuple(expected))
    half = torch.randn(1, 6).bfloat16()
    assert torch.equal(linear(half, weight.bfloat16()), F.linear(half, weight.bfloat16()))


@pytest.mark.parametrize("shape", [(6,), (1, 1, 6), (3, 6), (0, 6)])
def test_rms_norm(shape):
    x, weight = torch.randn(shape).double(), torch.randn(6).double()
    expected = x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight
    torch.testing.assert_close(rms_norm(x, weight, 1e-5), expected, rtol=0, atol=1e-12)
    if x.numel() == 6:
        torch.testing.assert_close(one_row_rms_norm(x, weight, 1e-5), expected, rtol=0, atol=1e-12)
