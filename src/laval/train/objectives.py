"""What a stage minimises: `align` layer by layer on dense states, `anneal` end to end on hard routes."""

from __future__ import annotations

import random

import torch
from torch import nn

from laval.models import AdaptiveForCausalLM
from laval.runtime import STEPS
from laval.skip import FlexiDepthPolicy, Route
from laval.train.controller import DepthController
from laval.train.losses import depth_penalty, distillation_loss, next_token_loss, relative_error
from laval.train.recipe import Stage

FREE = 1e-9  # nats; a cost of exactly 0 has no logarithm
SURE = 1e-7  # gates nearer to 0 or 1 have an infinite score in float32


class Objective(nn.Module):
    """A model in training and the loss of one stage; the Trainer wraps it whole, so that all ranks share gradients.

    `progress` runs from 0 to 1 over the stage, `step` counts updates. Thresholds move between updates only
    (`end_step`), so that accumulated batches and several ranks give the gradient of one large batch.
    """

    def __init__(self, model: AdaptiveForCausalLM, stage: Stage):
        super().__init__()
        self.model, self.stage = model, stage
        self.layers = model.config.text_config.num_hidden_layers
        self.controller = DepthController(self.layers, len(model.policy.layers))
        self.progress, self.step = 0.0, 0
        self.unobserved: list[torch.Tensor] = []
        for depth in stage.depth or ():
            self.controller.check(depth)

    @property
    def policy(self) -> FlexiDepthPolicy:
        return self.model.policy

    def gradient_checkpointing_enable(self, **kwargs) -> None:
        """What the Trainer calls before transformers 5.24."""
        self.model.gradient_checkpointing_enable(**kwargs)

    def activation_checkpointing_enable(self, **kwargs) -> None:
        """What it calls since."""
        self.model.activation_checkpointing_enable(**kwargs)

    def train(self, mode: bool = True) -> Objective:
        """As usual, but the frozen base drops nothing out: its layers hear of it only to checkpoint gradients."""
        super().train(mode)
        self.model.base.eval()
        for block in self.model.backbone.blocks:
            block.layer.training = mode
        return self

    def end_step(self, gather=lambda scores: scores) -> None:
        """After an update: the controller sees the scores of all its batches; `gather` joins those of all ranks."""
        if self.unobserved:
            self.controller.observe(gather(torch.cat(self.unobserved, dim=1)))  # [Lr, B, T]
            self.unobserved = []

    def note(self, scores: torch.Tensor) -> None:
        if self.training:
            self.unobserved.append(scores.detach())  # [Lr, B, T]

    def depth_of(self, run: torch.Tensor) -> float:
        """Mean layers per token when the routed layers run as in run [Lr, B, T]."""
        return self.layers - (~run).float().sum(0).mean().item()


class Align(Objective):
    """Every adapter learns its layer's update, every router what skipping would cost, all from one dense forward.

    A router's score is the log of the predicted cost over `price` (nats): g > 0.5 means dearer than the price, so
    scores compare across layers. After the share `focus` of the stage the adapters care most for tokens that are
    likely to skip.
    """

    def __init__(self, model: AdaptiveForCausalLM, stage: Stage, price: float, nats: dict[int, float]):
        super().__init__(model, stage)
        self.price, self.nats = price, nats

    def forward(self, input_ids: torch.Tensor) -> dict:
        states = self.dense_states(input_ids)
        costs = torch.stack([self.cost(layer, states) for layer in self.policy.layers])  # [Lr, B, T] nats
        scores = torch.stack([self.score(layer, states) for layer in self.policy.layers])  # [Lr, B, T]
        self.note(scores)
        imitation = (costs * self.attention_to(scores)).sum(0).mean()
        prediction = (scores - (costs.detach().clamp(min=FREE) / self.price).log()).square().mean()
        run = scores.detach() > self.controller.threshold(self.goal)
        figures = {
            "imitation": costs.detach().mean().item(),
            "prediction": prediction.item(),
            "skip_cost": (costs.detach() * ~run).sum(0).mean().item(),
            "depth": self.depth_of(run),
        }
        return {"loss": imitation + prediction, "figures": figures, "run_rates": run.float().mean((1, 2))}

    @torch.no_grad()
    def dense_states(self, ids) -> list[torch.Tensor]:
        backbone, last = self.model.backbone, self.policy.layers[-1]
        x = backbone.embed(ids)  # [B, T, D]
        states, contexts = [x], backbone.contexts(x)
        for block, context in zip(backbone.blocks[: last + 1], contexts[: last + 1], strict=True):
            states.append(block(states[-1], context))
        return states

    def cost(self, layer: int, states) -> torch.Tensor:
        before, after = states[layer], states[layer + 1]
        update = self.policy.adapt(layer, self.model.backbone.blocks[layer].feed_norm(before))
        return self.nats[layer] * relative_error(update, after - before, after)  # [B, T]

    def score(self, layer: int, states) -> torch.Tensor:
        return self.policy.score(layer, self.model.backbone.blocks[layer].norm(states[layer]))  # [B, T]

    def attention_to(self, scores) -> torch.Tensor:
        if self.progress < self.stage.focus or self.controller.quantiles is None:
            return torch.ones_like(scores)
        usual = self.urgency(self.controller.quantiles.to(scores))  # not this batch's: parts of an update count alike
        return self.urgency(scores.detach()) / usual.mean()

    def urgency(self, scores) -> torch.Tensor:
        return torch.sigmoid((self.controller.threshold(self.goal) - scores) / 0.3) + 0.05

    @property
    def goal(self) -> float:
        """The depth whose skipping tokens matter most: the stage's, or nine tenths of the layers."""
        if self.stage.depth:
            return sum(self.stage.depth) / len(self.stage.depth)
        return self.layers - min(0.1 * self.layers, 0.5 * len(self.policy.layers))


class Anneal(Objective):
    """End to end with hard routes and straight-through gradients, towards the dense model's logits, the text, both."""

    def __init__(self, model: AdaptiveForCausalLM, stage: Stage, seed: int):
        super().__init__(model, stage)
        self.seed = seed
        if not stage.train_routers:
            self.policy.routers.requires_grad_(False)

    def forward(self, input_ids: torch.Tensor) -> dict:
        self.set_budget()
        x, contexts = self.lower(input_ids)
        student, routes = self.upper(x, contexts)
        loss, figures = self.loss(student, x, contexts, input_ids)
        if self.stage.alpha:
            loss = loss + self.stage.alpha * depth_penalty(torch.stack([route.gate for route in routes]))
        run = torch.stack([route.run for route in routes])  # [Lr, B, T]
        self.note(torch.stack([route.gate.detach().logit(SURE) for route in routes]))
        figures["depth"] = self.depth_of(run)
        return {"loss": loss, "figures": figures, "run_rates": run.float().mean((1, 2))}

    def set_budget(self) -> None:
        if self.stage.depth is None or self.controller.quantiles is None:
            return
        wanted = random.Random(f"{self.seed}/{self.step}").uniform(self.stage.depth[0], self.stage.depth[-1])
        self.policy.thresholds = dict.fromkeys(self.policy.layers, self.controller.threshold(wanted))

    @torch.no_grad()
    def lower(self, ids) -> tuple[torch.Tensor, list]:
        """The frozen layers below the first routed one, computed once for student and teacher."""
        backbone, first = self.model.backbone, self.policy.layers[0]
        x = backbone.embed(ids)
        contexts = backbone.contexts(x)
        for block, context in zip(backbone.blocks[:first], contexts[:first], strict=True):
            x = block(x, context)
        return x, contexts[first:]

    def upper(self, x, contexts) -> tuple[torch.Tensor, list[Route]]:
        policy, backbone, routes = self.policy, self.model.backbone, []
        for block, context in zip(backbone.blocks[policy.layers[0] :], contexts, strict=True):
            if block.index in policy.layers:
                x, route = self.model.remat(block, STEPS["masked"])(block, policy, x, context)
                routes.append(route)
            else:
                x = block(x, context)
        return backbone.head(x), routes

    def loss(self, student, x, contexts, ids) -> tuple[torch.Tensor, dict[str, float]]:
        total, figures = student.new_zeros(()), {}
        if self.stage.distill:
            with torch.no_grad():
                teacher = self.dense_upper(x, contexts)
            kl = distillation_loss(student, teacher)
            total, figures["kl"] = total + self.stage.distill * kl, kl.item()
            figures["dense_lm"] = next_token_loss(teacher, ids).item()
        lm = next_token_loss(student, ids)
        figures["lm"] = lm.item()
        return total + self.stage.lm * lm, figures

    def dense_upper(self, x, contexts) -> torch.Tensor:
        backbone = self.model.backbone
        for block, context in zip(backbone.blocks[self.policy.layers[0] :], contexts, strict=True):
            x = block(x, context)
        return backbone.head(x)
