"""Products with int8 weights: equal to those with the numbers that the weights stand for, whatever the shape."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from laval.ops import int8
from laval.ops.int8 import EXTRA, FEW, LEVELS, UNPACK, WIDTH, linear, pack, part_linear, row_map, unpack

ROUNDING = 2e-5  # of sums in float32


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(params=[True, False], ids=["kernel", "no kernel"])
def kernel(request, monkeypatch):
    """With torch's kernel, and as on machines without it."""
    if request.param and not int8.has_kernel():
        pytest.skip("torch was built without the kernel")
    monkeypatch.setattr(int8, "has_kernel", lambda: request.param)


def naive(x, table, scale, bias=None):
    """The twin: weights as the numbers they stand for, one by one, in float64."""
    inputs = x.shape[-1]
    weight = torch.empty(len(scale), inputs, dtype=torch.float64)
    for o in range(len(scale)):
        block = table[o // WIDTH * inputs : (o // WIDTH + 1) * inputs]
        step, lowest = block[:, WIDTH:].contiguous().view(torch.float32).double().unbind(1)
        weight[o] = scale[o].double() * (lowest + step * block[:, o % WIDTH].double())
    y = x.double() @ weight.t()
    return y if bias is None else y + bias.double()


def assert_close(found, expected):
    size = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=ROUNDING * size)


def drawn(rows, inputs, outputs, seed=0):
    torch.manual_seed(seed)
    return torch.randn(rows, inputs), *pack(torch.randn(outputs, inputs))


def one_step_an_output(weight):
    """Plain rounding to 8 bits: levels from -127 to 127 of one step for all weights of an output, float64."""
    step = weight.double().abs().amax(1, keepdim=True) / 127
    return (weight / step.where(step > 0, 1.0)).round() * step


def outliers(kind):
    """Weights [192, 576] as layers have them: a few outputs, weights or inputs of them far above the others."""
    torch.manual_seed(0)
    weight = torch.randn(192, 576)
    if kind == "one output":
        weight[5] *= 300
    elif kind == "one weight":
        weight[5, 7] = 300
    elif kind == "one input":
        weight[:, 7] *= 300
    elif kind == "every size":
        weight *= torch.logspace(-6, 6, 192)[:, None]
    return weight


KINDS = ["none", "one output", "one weight", "one input", "every size"]


@pytest.mark.parametrize("kind", KINDS)
def test_products_are_as_near_as_with_one_step_an_output(kind, kernel):
    """Errors over the sizes of outputs, so that small ones count as much as large ones."""
    weight, x = outliers(kind), torch.randn(64, 576)
    exact = x.double() @ weight.double().t()
    plain = x.double() @ one_step_an_output(weight).t()
    for y in (linear(x, *pack(weight)), torch.cat([linear(row[None], *pack(weight)) for row in x])):
        ours, theirs = ((each - exact).norm(dim=0) / exact.norm(dim=0) for each in (y, plain))
        assert ours.norm() <= theirs.norm()
        assert (ours <= 1.5 * theirs).all()  # a single output's is a matter of chance


@given(outputs=st.integers(1, 200), inputs=st.integers(1, 40), spread=st.floats(0, 10))
def test_no_weight_moves_further_than_by_half_of_its_outputs_own_step(outputs, inputs, spread):
    torch.manual_seed(0)
    weight = torch.randn(outputs, inputs) * torch.exp(spread * torch.randn(outputs, 1))
    weight[outputs // 2] = 0  # as a head has for padding
    error = (unpack(*pack(weight), inputs).double() - weight).abs()
    assert (error <= 0.501 * weight.abs().amax(1, keepdim=True) / 127).all()


@given(outputs=st.integers(1, 200), inputs=st.integers(1, 40), exponent=st.integers(-30, 30))
def test_a_weight_moves_by_half_a_step_at_most(outputs, inputs, exponent):
    torch.manual_seed(0)
    weight = torch.randn(outputs, inputs) * 2.0**exponent
    table, scale = pack(weight)
    assert scale.shape == (outputs,) and scale.dtype == torch.float32
    blocks = -(-outputs // WIDTH)
    assert table.dtype == torch.uint8 and table.shape == (blocks * inputs, WIDTH + EXTRA) and table.is_contiguous()
    shrunk = weight.double() / scale[:, None]
    padded = F.pad(shrunk, (0, 0, 0, blocks * WIDTH - outputs)).view(blocks, WIDTH, inputs)
    step = (padded.amax(1, keepdim=True) - padded.amin(1, keepdim=True)) / LEVELS  # of one input in one block
    error = F.pad(unpack(table, scale, inputs).double() / scale[:, None] - shrunk, (0, 0, 0, blocks * WIDTH - outputs))
    assert (error.view_as(padded).abs() <= 0.501 * step + 1e-6).all()


@pytest.mark.parametrize("weight", [torch.zeros(3, 32), torch.full((100, 4), 0.3), torch.full((2, 3), -1e-42)])
def test_weights_that_are_all_alike(weight, kernel):
    packed = pack(weight)
    torch.testing.assert_close(unpack(*packed, weight.shape[1]), weight, rtol=1e-6, atol=0)
    x = torch.ones(2, weight.shape[1])
    torch.testing.assert_close(linear(x, *packed), x @ weight.t(), rtol=1e-5, atol=1e-12)


def test_a_table_is_read_as_torch_reads_it():
    """The layout is torch's own, of its quantised embedding bags."""
    weight = torch.randn(2 * WIDTH, 7)
    table, scale = pack(weight)
    rows = UNPACK(table).view(2, 7, WIDTH)
    torch.testing.assert_close(rows.transpose(1, 2).reshape(-1, 7) * scale[:, None], unpack(table, scale, 7))
    theirs = torch.ops.quantized.embedding_bag_byte_prepack(
        (weight / scale[:, None]).view(2, WIDTH, 7).transpose(1, 2).reshape(-1, WIDTH)
    )
    torch.testing.assert_close(UNPACK(table), UNPACK(theirs), rtol=0, atol=1e-5)


@given(rows=st.integers(1, 40), inputs=st.integers(1, 70), outputs=st.integers(1, 250))
def test_equal_to_the_naive_product(rows, inputs, outputs):
    with torch.no_grad():
        x, *packed = drawn(rows, inputs, outputs)
        assert_close(linear(x, *packed), naive(x, *packed))


@pytest.mark.parametrize("outputs", [1, WIDTH - 1, WIDTH, WIDTH + 1, 4 * WIDTH])
@pytest.mark.parametrize("bias", [False, True])
def test_the_map_of_one_row_equals_the_naive_product(outputs, bias, kernel):
    x, *packed = drawn(3, 40, outputs)
    added = torch.randn(outputs) if bias else None
    product, before = row_map(*packed, 40, added), None if added is None else added.clone()
    made = [product(row) for row in x]  # kept: no call may write over what an earlier one gave
    for row, y in zip(x, made, strict=True):
        assert y.shape == (outputs,)
        assert_close(y, naive(row, *packed, added))
    assert added is None or torch.equal(added, before)
    torch.testing.assert_close(product(x[0].double()), naive(x[0], *packed, added), rtol=0, atol=1e-5)
    assert product(x[0].double()).dtype == torch.float64 and product(x[0].bfloat16()).dtype == torch.bfloat16


def test_maps_that_share_memory_do_not_disturb_each_other():
    x, *packed = drawn(2, 40, WIDTH)
    _, *other = drawn(1, 40, WIDTH, seed=1)
    first, second = row_map(*packed, 40), row_map(*other, 40)
    ours, theirs, again = first(x[0]), second(x[1]), first(x[0])
    assert_close(ours, naive(x[0], *packed))
    assert_close(theirs, naive(x[1], *other))
    assert_close(again, naive(x[0], *packed))


@pytest.mark.parametrize("rows", [1, FEW, FEW + 1, 64])
def test_near_to_the_product_before_quantising(rows):
    torch.manual_seed(0)
    x, weight = torch.randn(rows, 576), torch.randn(192, 576)
    y, expected = linear(x, *pack(weight)), F.linear(x, weight)
    assert (y - expected).norm() / expected.norm() < 0.008


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (4, 3), (2, FEW), (0,)])
def test_any_leading_shape(shape, kernel):
    x, packed = torch.randn(*shape, 31), drawn(1, 31, 7)[1:]
    y = linear(x, *packed)
    assert y.shape == (*shape, 7)
    assert_close(y, naive(x.view(-1, 31), *packed).view(*shape, 7))


@pytest.mark.parametrize("rows", [1, 5, 20])
def test_rows_that_do_not_lie_side_by_side(rows):
    _, *packed = drawn(1, 64, 8)
    x = torch.randn(64, rows).t()
    assert_close(linear(x, *packed), naive(x, *packed))


@pytest.mark.parametrize("rows", [1, 20])
def test_the_bias_is_added_and_kept(rows):
    x, *packed = drawn(rows, 64, 8)
    bias = torch.randn(8)
    before = bias.clone()
    assert_close(linear(x, *packed, bias), naive(x, *packed, bias))
    assert torch.equal(linear(0 * x, *packed, bias), before.expand(rows, 8)) and torch.equal(bias, before)


@pytest.mark.parametrize("start, count", [(0, 300), (0, 1), (96, 96), (95, 2), (100, 150), (299, 1)])
@pytest.mark.parametrize("rows", [1, 20])
def test_a_part_reads_its_own_blocks_only(rows, start, count):
    x, *packed = drawn(rows, 20, 300)
    expected = naive(x, *packed)[:, start : start + count]
    first, last = start // WIDTH, (start + count - 1) // WIDTH
    for block in {*range(4)} - {*range(first, last + 1)}:
        packed[0][block * 20 : (block + 1) * 20].view(torch.float32)[:, WIDTH // 4 :] = torch.nan
    assert_close(part_linear(x, *packed, start, count), expected)


def test_a_row_does_not_depend_on_those_beside_it():
    """Up to how a sum rounds."""
    x, *packed = drawn(64, 96, 40)
    alone = torch.cat([linear(row[None], *packed) for row in x]).double()
    for count in range(1, FEW + 1):
        assert_close(linear(x[:count], *packed), alone[:count])
    assert_close(linear(x, *packed), alone)


def test_large_weights_are_unpacked_in_pieces(monkeypatch):
    x, *packed = drawn(20, 33, 500)
    whole = naive(x, *packed)
    for piece in (1, 33 * WIDTH, 2 * 33 * WIDTH + 5, 33 * 1000):
        monkeypatch.setattr(int8, "PIECE", piece)
        assert_close(linear(x, *packed), whole)


def test_memory_of_an_inference_can_be_written_after_it():
    vars(int8.SCRATCH).clear()
    int8.places.cache_clear()
    x, *packed = drawn(1, 5, 7)
    with torch.inference_mode():
        linear(x.clone(), *(each.clone() for each in packed))
    assert_close(linear(x, *packed), naive(x, *packed))


def test_other_number_types():
    x, *packed = drawn(4, 64, 8)
    exact = F.linear(x.double(), unpack(*packed, 64).double())
    torch.testing.assert_close(linear(x.double(), *packed), exact, rtol=0, atol=1e-12)
    half = linear(x.bfloat16(), *packed)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, linear(x.bfloat16().float(), *packed).bfloat16())
