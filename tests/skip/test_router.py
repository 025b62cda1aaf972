"""The router's folded vector is kept between calls, and never a stale one."""

from __future__ import annotations

import copy

import pytest
import torch

from laval.skip.router import ROUTERS, Router


@pytest.fixture
def router():
    torch.manual_seed(0)
    made = Router(16, 4)
    torch.nn.init.normal_(made.head.weight)
    return made


def unfolded(router, z):
    return router.head(router.up(router.squash(router.down(z), router.normalise))).squeeze(-1)


def halve(router):
    router.up.weight.mul_(0.5)


def load(router):
    other = Router(16, 4)
    torch.nn.init.normal_(other.head.weight)
    router.load_state_dict(other.state_dict())


def replace(router):
    router.up.weight.data = torch.randn(16, 4)


@torch.no_grad()
@pytest.mark.parametrize("change", [halve, load, replace])
def test_a_changed_weight_is_noticed(router, change):
    z = torch.randn(3, 16)
    assert torch.allclose(router(z), unfolded(router, z), atol=1e-5)
    before = router(z)
    change(router)
    assert not torch.allclose(router(z), before)
    assert torch.allclose(router(z), unfolded(router, z), atol=1e-5)


def test_the_kept_vector_carries_no_gradient_into_training(router):
    z = torch.randn(3, 16)
    with torch.no_grad():
        router(z)
    router(z).sum().backward()
    assert router.up.weight.grad is not None and router.head.weight.grad.abs().sum() > 0


def test_copies_and_other_dtypes_have_their_own(router):
    z = torch.randn(3, 16)
    with torch.no_grad():
        router(z)
        twin = copy.deepcopy(router).double()
        assert torch.allclose(twin(z.double()).float(), router(z), atol=1e-5)


@pytest.mark.parametrize("kind", ROUTERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_one_row_gets_the_score_of_any_row(kind, dtype):
    torch.manual_seed(1)
    router = ROUTERS[kind](16, 5).to(dtype)
    for parameter in router.parameters():
        torch.nn.init.normal_(parameter)
    z = torch.randn(4, 16).to(dtype)
    with torch.no_grad():
        expected = router(z).tolist()
        first, finish = router.single()
        found = [finish(first.mv(row).tolist()) for row in z]
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("kind", ROUTERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_several_rows_get_the_scores_of_any_rows(kind, dtype):
    torch.manual_seed(1)
    router = ROUTERS[kind](16, 5).to(dtype)
    for parameter in router.parameters():
        torch.nn.init.normal_(parameter)
    z = torch.randn(4, 16).to(dtype)
    with torch.no_grad():
        first, finish = router.several()
        torch.testing.assert_close(finish(z @ first.t()), router(z), rtol=1e-5, atol=1e-5)
