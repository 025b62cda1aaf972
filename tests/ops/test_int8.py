"""Products with int8 weights: equal to those with the numbers that the weights stand for, whatever the shape."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from laval.ops import int8
from laval.ops.int8 import FEW, LARGEST, STRIDE, converted, exact_linear, linear, quantise

LAST_PLACE = 2.0**-7  # of bfloat16, as a share of the number


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def naive(x, weight, scale, bias=None):
    """The twin: weights as the numbers they stand for, in float64, rounded where `linear` says that it rounds."""
    y = x.bfloat16().double() @ (weight.double() * scale.double()[:, None]).t()
    y = y.bfloat16().double()
    return y if bias is None else y + bias.double()


def assert_close(found, expected):
    """Up to the last place of bfloat16: a sum in float32 may round to the other side."""
    torch.testing.assert_close(found.double(), expected, rtol=LAST_PLACE, atol=1e-4)


def drawn(rows, inputs, outputs, seed=0):
    torch.manual_seed(seed)
    return torch.randn(rows, inputs), *quantise(torch.randn(outputs, inputs))


@given(outputs=st.integers(1, 40), inputs=st.integers(1, 40), exponent=st.integers(-30, 30))
def test_a_weight_moves_by_half_a_step_at_most(outputs, inputs, exponent):
    torch.manual_seed(0)
    weight = torch.randn(outputs, inputs) * 2.0**exponent
    values, scale = quantise(weight)
    assert values.dtype == torch.int8 and scale.dtype == torch.bfloat16
    step = scale.double()[:, None]
    error = (values.double() * step - weight.double()).abs() / step
    assert error.max() <= 0.501
    assert (values.abs().amax(1) >= LARGEST - 1).all()


@pytest.mark.parametrize("weight", [torch.zeros(3, 32), torch.eye(3, 32) * torch.tensor([[1.0], [0.0], [-1e-42]])])
def test_outputs_without_weights(weight):
    values, scale = quantise(weight)
    y = linear(torch.ones(2, 32), values, scale)
    torch.testing.assert_close(y, torch.ones(2, 32) @ weight.t(), rtol=0, atol=1e-2)
    assert y[:, weight.abs().amax(1) == 0].eq(0).all()


@given(rows=st.integers(1, 64), inputs=st.sampled_from([1, 5, 31, 32, 33, 64, 96, 577]), outputs=st.integers(1, 60))
def test_equal_to_the_naive_product(rows, inputs, outputs):
    with torch.no_grad():
        x, weight, scale = drawn(rows, inputs, outputs)
        assert_close(linear(x, weight, scale), naive(x, weight, scale))


@pytest.mark.parametrize("rows", [1, FEW, FEW + 1, 64])
def test_near_to_the_product_before_quantising(rows):
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 576), torch.randn(192, 576)
    y, expected = linear(x, *quantise(weight)), F.linear(x, weight)
    assert (y - expected).norm() / expected.norm() < 0.012


@pytest.mark.parametrize("inputs", [31, 64])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (4, 3), (2, FEW), (0,)])
def test_any_leading_shape(shape, inputs):
    x, weight, scale = torch.randn(*shape, inputs), *drawn(1, inputs, 7)[1:]
    y = linear(x, weight, scale)
    assert y.shape == (*shape, 7)
    assert_close(y, naive(x.view(-1, inputs), weight, scale).view(*shape, 7))


def test_rows_that_do_not_lie_side_by_side():
    _, weight, scale = drawn(1, 64, 8)
    x = torch.randn(64, 5).t()
    assert_close(linear(x, weight, scale), naive(x, weight, scale))


@pytest.mark.parametrize("rows", [1, 20])
def test_the_bias_is_added_after_rounding_and_kept(rows):
    x, weight, scale = drawn(rows, 64, 8)
    bias = torch.full((8,), 1 + 2.0**-20)  # no bfloat16
    before = bias.clone()
    assert_close(linear(x, weight, scale, bias), naive(x, weight, scale, bias))
    assert torch.equal(linear(0 * x, weight, scale, bias), before.expand(rows, 8)) and torch.equal(bias, before)


def test_a_row_does_not_depend_on_those_beside_it():
    """Bit for bit among few rows; between few and many up to how a sum rounds."""
    x, weight, scale = drawn(64, 96, 40)
    alone = torch.cat([linear(row[None], weight, scale) for row in x])
    for count in range(1, FEW + 1):
        assert torch.equal(linear(x[:count], weight, scale), alone[:count])
    together = linear(x, weight, scale)
    assert_close(together, alone.double())
    assert (together == alone).double().mean() > 0.98


def test_large_weights_are_converted_in_pieces(monkeypatch):
    x, weight, scale = drawn(20, 33, 50)
    whole = linear(x, weight, scale)
    for piece in (1, 33 * 7, 33 * 50):
        monkeypatch.setattr(int8, "PIECE", piece)
        assert_close(linear(x, weight, scale), whole.double())


def test_memory_of_an_inference_can_be_written_after_it():
    vars(int8.SCRATCH).clear()
    with torch.inference_mode():
        converted(torch.ones(2, 3, dtype=torch.int8))
    part = torch.arange(6, dtype=torch.int8).view(2, 3)
    assert torch.equal(converted(part), part.float())


def test_other_number_types():
    x, weight, scale = drawn(4, 64, 8)
    wide = linear(x.double(), weight, scale)
    torch.testing.assert_close(wide, x.double() @ (weight.double() * scale.double()[:, None]).t(), rtol=0, atol=1e-12)
    assert torch.equal(wide, exact_linear(x.double(), weight, scale))
    half = linear(x.bfloat16(), weight, scale)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half.float(), linear(x, weight, scale))
    assert torch.equal(linear(x, weight, scale.float()), linear(x, weight, scale))  # as after model.float()


def test_inputs_that_are_no_whole_vectors_keep_off_the_kernel(monkeypatch):
    """It reads whole vectors, beyond the end of a row of another length: wrong numbers, or a crash."""
    monkeypatch.setattr(int8, "few_rows_linear", None)
    for inputs in (STRIDE - 1, STRIDE + 8):
        x, weight, scale = drawn(1, inputs, 8)
        assert_close(linear(x, weight, scale), naive(x, weight, scale))
