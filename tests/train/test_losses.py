"""Losses against loops and definitions."""

from __future__ import annotations

import torch

from laval.train.losses import depth_penalty, distillation_loss, next_token_loss, relative_error


def test_depth_penalty_is_the_square_of_the_sum():
    gates = torch.rand(3, 2, 5, dtype=torch.float64)
    squares = [sum(gates[layer, b, t] for layer in range(3)) ** 2 for b in range(2) for t in range(5)]
    torch.testing.assert_close(depth_penalty(gates), sum(squares) / len(squares))
    assert depth_penalty(torch.full((16, 1, 1), 0.5)) == 64  # the published start


def test_depth_penalty_presses_on_all_layers_of_a_token_alike():
    gates = torch.rand(3, 2, 5, dtype=torch.float64, requires_grad=True)
    depth_penalty(gates).backward()
    torch.testing.assert_close(gates.grad, (2 * gates.detach().sum(0) / 10).expand(3, 2, 5))


def test_distillation_is_the_divergence_of_the_student_from_the_teacher():
    student, teacher = torch.randn(2, 3, 5, 7, dtype=torch.float64)
    wanted = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=teacher), torch.distributions.Categorical(logits=student)
    )
    torch.testing.assert_close(distillation_loss(student, teacher), wanted.mean())
    assert distillation_loss(teacher, teacher) == 0


def test_next_token_loss():
    logits, ids = torch.randn(2, 4, 9, dtype=torch.float64), torch.randint(9, (2, 4))
    nats = [-logits[b, t].log_softmax(-1)[ids[b, t + 1]] for b in range(2) for t in range(3)]
    torch.testing.assert_close(next_token_loss(logits, ids), sum(nats) / len(nats))


def test_relative_error():
    before, after = torch.randn(2, 2, 3, 8, dtype=torch.float64)
    wanted = after - before
    assert relative_error(wanted, wanted, after).abs().max() == 0
    scaled = relative_error(wanted - 0.5 * after, wanted, after)
    torch.testing.assert_close(scaled, torch.full((2, 3), 0.25, dtype=torch.float64))


def test_half_precision_logits_are_measured_in_float32():
    logits, ids = torch.randn(2, 6, 50).bfloat16(), torch.randint(50, (2, 6))
    assert next_token_loss(logits, ids) == next_token_loss(logits.float(), ids)
    assert distillation_loss(logits, logits.flip(0)) == distillation_loss(logits.float(), logits.flip(0).float())
