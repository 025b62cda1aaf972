"""The end of a run: the budget curve is measured on calibration text, and the plug-in saved with its card."""

from __future__ import annotations

import torch

from laval.evaluate.budget import calibrate
from laval.models import AdaptiveForCausalLM, set_depth
from laval.models.plugin import save_plugin
from laval.train.card import card
from laval.train.data import sequences
from laval.train.recipe import Data, Recipe

PLUGIN = "plugin"
DTYPE = torch.bfloat16  # on disk
BATCH = 8


def finish(model: AdaptiveForCausalLM, recipe: Recipe, ranks: int = 1) -> None:
    """Save `model`'s plug-in to recipe.output / "plugin" in bfloat16, calibrated where the recipe says on what.

    The model keeps the rounded weights: what is measured is what was saved. ranks: processes that trained, for the
    card. Errors: as `calibrate` and `save_plugin`.
    """
    round_policy(model)
    if recipe.depths:
        model.config.curve = calibrate(model, calibration_text(model, recipe), recipe.depths)
    if recipe.ship_depth is not None:
        set_depth(model, on_curve(model.config.curve, recipe.ship_depth))
    save_plugin(model, recipe.output / PLUGIN, dtype=DTYPE, card=card(model, recipe, ranks))


@torch.no_grad()
def round_policy(model: AdaptiveForCausalLM) -> None:
    for parameter in model.policy.parameters():
        parameter.copy_(parameter.to(DTYPE))


def calibration_text(model: AdaptiveForCausalLM, recipe: Recipe) -> tuple[torch.Tensor, ...]:
    """Batches of ids [B, T], drawn from the calibration sources by weight, as in training."""
    rows = sequences(calibration_data(recipe), model.tokenizer, recipe.calibrate_tokens, recipe.seed)
    return torch.stack([rows[i]["input_ids"] for i in range(len(rows))]).to(model.device).split(BATCH)


def calibration_data(recipe: Recipe) -> Data:
    return Data(recipe.calibrate, recipe.data.length)


def on_curve(curve: list[dict], depth: float) -> float:
    """The depth, or the end of the curve nearest to it: measured ends miss the wanted ones by a hair."""
    depths = [point["depth"] for point in curve]
    return min(max(depth, min(depths)), max(depths))
