"""What a stage minimises, against naive computations over the whole model."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from laval.models import dense, using
from laval.train.objectives import Align, Anneal
from tests.tiny import tiny_model
from tests.train.runs import ALIGN, LAYERS, batch, fresh, gradients, routed, stage

DEPTH, NATS = 4, {1: 0.2, 2: 0.5, 3: 1.0}


def annealed(model, seed=0, **fields) -> Anneal:
    return Anneal(model, stage(**fields), seed).train()


def aligned(model, **fields) -> Align:
    return Align(model, stage(ALIGN, **fields), price=0.05, nats=NATS).train()


def exact_model(**fields):
    return routed(base=tiny_model("llama", torch.float64, attn_implementation="eager"), **fields)


def student_and_teacher(objective, ids):
    x, contexts = objective.lower(ids)
    with torch.no_grad():
        return objective.upper(x, contexts)[0], objective.dense_upper(x, contexts)


@pytest.mark.parametrize("gate", ["hard_mask", "released"])
def test_student_is_the_model_and_teacher_is_the_base(gate):
    model, ids = routed(gate=gate), batch()
    student, teacher = student_and_teacher(annealed(model), ids)
    model.eval()
    with torch.no_grad(), using(model, "masked"):
        assert torch.equal(student, model(input_ids=ids).logits)
        assert torch.equal(teacher, model.base(input_ids=ids).logits)
        assert not torch.equal(student, teacher)
    with torch.no_grad(), dense(model):
        assert torch.equal(teacher, model(input_ids=ids).logits)


def test_the_frozen_base_drops_nothing_out_in_training():
    model, ids = routed(base=tiny_model("llama", attention_dropout=0.5)), batch()
    _, teacher = student_and_teacher(annealed(model), ids)
    with torch.no_grad():
        assert torch.equal(teacher, model.base.eval()(input_ids=ids).logits)


def naive_loss(model, ids, distill=0.0, lm=0.0, alpha=0.0):
    """The loss of a stage from whole forwards."""
    with using(model, "masked"):
        out = model(input_ids=ids, use_cache=False)
    logits = out.logits
    with torch.no_grad():
        teacher = model.base(input_ids=ids, use_cache=False).logits.softmax(-1)
    kl = (teacher * (teacher.log() - logits.log_softmax(-1))).sum(-1).mean()
    nats = F.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))
    penalty = sum(route.gate for route in out.routes).square().mean()
    return distill * kl + lm * nats + alpha * penalty


@pytest.mark.parametrize(
    "weights",
    [
        {"distill": 1.0, "lm": 0.0, "depth": [3]},
        {"distill": 0.7, "lm": 0.3, "depth": [3]},
        {"distill": 0.0, "lm": 1.0, "alpha": 1e-2, "depth": None},
    ],
)
@pytest.mark.parametrize("gate", ["hard_mask", "released"])
def test_loss_and_gradients_are_those_of_whole_forwards(weights, gate):
    model, ids = exact_model(gate=gate), batch()
    loss = annealed(model, **weights)(ids)["loss"]
    loss.backward()
    fast = gradients(model)
    model.policy.zero_grad()
    naive = naive_loss(model, ids, **{name: value for name, value in weights.items() if name != "depth"})
    naive.backward()
    torch.testing.assert_close(loss, naive, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(fast, gradients(model), rtol=1e-9, atol=1e-12)
    assert fast.abs().max() > 1e-4


@pytest.mark.parametrize("objective", [aligned, annealed])
def test_the_base_never_changes_and_gets_no_gradients(objective):
    model = routed()
    before = {name: parameter.clone() for name, parameter in model.base.named_parameters()}
    step = objective(model)
    optimizer = torch.optim.AdamW([p for p in step.parameters() if p.requires_grad], lr=0.1)
    for seed in range(2):
        step(batch(seed=seed))["loss"].backward()
        optimizer.step()
    for name, parameter in model.base.named_parameters():
        assert parameter.grad is None and torch.equal(parameter, before[name])


def test_routers_learn_straight_through_only_when_they_are_told_to():
    for wanted in (True, False):
        model = routed()
        annealed(model, train_routers=wanted)(batch())["loss"].backward()
        for layer in LAYERS:
            learns = {name: p.grad is not None for name, p in model.policy.routers[str(layer)].named_parameters()}
            assert set(learns.values()) == {wanted}
            assert all(p.grad.abs().max() > 0 for p in model.policy.adapters[str(layer)].parameters())
    assert routed_gradient() > 0


def routed_gradient() -> float:
    model = routed()
    annealed(model)(batch())["loss"].backward()
    return min(model.policy.routers[str(layer)].head.weight.grad.abs().max().item() for layer in LAYERS)


def test_align_teaches_adapters_and_routers():
    model = fresh()
    objective = aligned(model)
    optimizer = torch.optim.AdamW(model.policy.parameters(), lr=1e-2)
    losses = []
    for step in range(60):
        optimizer.zero_grad()
        result = objective(batch(8, 24, seed=step))
        result["loss"].backward()
        optimizer.step()
        objective.end_step()
        losses.append(result["figures"]["imitation"])
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])
    assert correlation(objective, batch(8, 24, seed=1000)) > 0.5  # text never seen


@torch.no_grad()
def correlation(objective, ids) -> float:
    """Of router scores with the logarithm of the costs they predict, over tokens and layers."""
    states = objective.dense_states(ids)
    costs = torch.stack([objective.cost(layer, states).log().flatten() for layer in LAYERS])
    scores = torch.stack([objective.score(layer, states).flatten() for layer in LAYERS])
    return torch.corrcoef(torch.stack([costs.flatten(), scores.flatten()]))[0, 1].item()


def test_align_measures_costs_on_dense_states():
    model, ids = routed(), batch()
    objective = aligned(model)
    states = objective.dense_states(ids)
    hidden = model.base(input_ids=ids, output_hidden_states=True).hidden_states
    for layer in range(LAYERS[-1]):  # transformers norms the last one
        assert torch.equal(states[layer], hidden[layer])
    block = model.backbone.blocks[2]
    update = model.policy.adapters["2"](block.feed_norm(states[2]))
    error = (states[2] + update - states[3]).square().sum(-1) / states[3].square().sum(-1)
    torch.testing.assert_close(objective.cost(2, states), NATS[2] * error)


def test_align_cares_for_likely_skippers_after_the_focus():
    objective = aligned(routed(), focus=0.5)
    scores = torch.randn(3, 2, 8)
    objective.controller.observe(scores)
    assert (objective.attention_to(scores) == 1).all()
    objective.progress = 0.5
    weight = objective.attention_to(scores)
    assert weight.mean() == pytest.approx(1, rel=0.1) and weight[scores.argmin() == torch.arange(48).view(3, 2, 8)] > 1
    assert weight.flatten()[scores.argmax()] < 1


@pytest.mark.parametrize("objective", [aligned, annealed])
def test_parts_of_an_update_add_up(objective):
    found = []
    for parts in (1, 4):
        model = exact_model()
        step = objective(model, focus=0.0, depth=[3])
        for ids in (batch(8, seed=1), batch(8, seed=2)):  # the second time with a controller that has seen scores
            model.policy.zero_grad()
            for part in ids.split(8 // parts):
                (step(part)["loss"] / parts).backward()
            step.end_step()
        found.append((gradients(model), step.controller.quantiles))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-9, atol=1e-12)
    assert torch.equal(found[0][1], found[1][1])


def test_a_perfect_adapter_costs_nothing_and_breaks_nothing():
    model = routed()
    with torch.no_grad():  # a layer without effect, imitated by an adapter without effect
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            model.backbone.blocks[2].layer.get_submodule(name).weight.zero_()
        model.policy.adapters["2"].up_proj.weight.zero_()
    assert torch.isfinite(aligned(model)(batch())["loss"])


def test_gates_too_sure_for_float32_leave_the_controller_finite():
    model = routed()
    with torch.no_grad():
        model.policy.routers["1"].head.bias.fill_(60.0)
        model.policy.routers["2"].head.bias.fill_(-200.0)
    objective = annealed(model, depth=[3])
    for _ in range(2):
        objective(batch())
        objective.end_step()
    assert torch.isfinite(objective.controller.quantiles).all()


def test_anneal_holds_its_depth_and_draws_it_by_step():
    model = routed()
    objective = annealed(model, depth=[2.2, 3.8])
    objective(batch())
    objective.end_step()
    thresholds = []
    for step in (1, 2, 1):
        objective.step = step
        objective.set_budget()
        thresholds.append(model.policy.thresholds[1])
    assert thresholds[0] == thresholds[2] != thresholds[1]
    objective = annealed(model, depth=[3])
    for _ in range(30):
        result = objective(batch(8, 32))
        objective.end_step()
    assert abs(result["figures"]["depth"] - 3) < 0.15


def test_the_goal_of_align_without_a_depth_is_in_reach():
    objective = aligned(routed(layers=[2]), depth=None)
    objective.controller.observe(torch.randn(100))
    assert abs(objective.controller.threshold(objective.goal)) < 10


def test_a_depth_out_of_reach_is_an_error_before_anything_runs():
    with pytest.raises(ValueError, match=r"depth is 0.5; expected 1 to 4 \(3 of 4 layers"):
        annealed(routed(), depth=[0.5, 3])
