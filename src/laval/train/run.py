"""A whole training run: stages one after another, resumable at any moment, a calibrated plug-in at the end."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import torch

from laval.config import load_config, save_config
from laval.files import atomic_write
from laval.models import AdaptiveForCausalLM, attach
from laval.models.base import load_base
from laval.models.checks import check_adaptive
from laval.models.load import DEFAULT
from laval.models.plugin import save_plugin
from laval.models.smollm2 import NAME
from laval.skip import FlexiDepthPolicy
from laval.train.checkpoint import newest, take_over
from laval.train.controller import DepthController
from laval.train.data import Sequences, check_data, sequences
from laval.train.finish import calibration_data, finish
from laval.train.metrics import Metrics
from laval.train.objectives import Align, Anneal, Objective
from laval.train.recipe import Data, Recipe, Source, Stage
from laval.train.sensitivity import sensitivity
from laval.train.stop import stoppable
from laval.train.trainer import ObjectiveTrainer, arguments

SENSITIVITY = "sensitivity.json"
PROBES, PROBE_BATCH = 8, 4  # batches and sequences for the one-time sensitivity measurement


def read_recipe(path: str | Path, overrides=()) -> Recipe:
    """The recipe in a YAML file; overrides ("seed=1") win. ValueError that names the key, the value and the fix."""
    return load_config(Recipe, path, overrides)


def with_data(recipe: Recipe | str | Path, data=None) -> Recipe:
    """The recipe with all stages on `data`: a file, a folder, a list of them, or Data; None leaves it as it is."""
    if recipe is None:
        raise ValueError("recipe is missing; expected a Recipe or the YAML file of one")
    recipe = recipe if isinstance(recipe, Recipe) else read_recipe(recipe)
    if data is None:
        return recipe
    if not isinstance(data, Data):
        paths = [data] if isinstance(data, (str, Path)) else data
        data = replace(recipe.data, sources=tuple(Source(Path(path)) for path in paths))
    return replace(recipe, data=data, stages=tuple(replace(stage, data=None) for stage in recipe.stages))


def model_for(recipe: Recipe) -> AdaptiveForCausalLM:
    """The recipe's base model with its new method attached, and `.tokenizer`; the same for the same seed."""
    base, tokenizer = load_base(NAME if recipe.model == DEFAULT else recipe.model)
    torch.manual_seed(recipe.seed)
    model = attach(base, recipe.build_method())
    model.tokenizer = tokenizer
    return model


def train(model: AdaptiveForCausalLM, recipe: Recipe) -> AdaptiveForCausalLM:
    """Carry out the recipe's stages on `model` (with `.tokenizer`); continues where an earlier run of it stopped.

    Everything goes to recipe.output: recipe.yaml, metrics.jsonl, a folder per stage with checkpoints and its result,
    and the finished plug-in. ValueError for unusable data, a depth out of reach, a method without routers, or a loss
    that is not finite; OSError for a full disk; KeyboardInterrupt after a checkpoint was written.
    """
    check(model, recipe)
    model.break_even = None  # learned with the plug-in as it was
    recipe.output.mkdir(parents=True, exist_ok=True)
    save_config(recipe, recipe.output / "recipe.yaml")
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    try:
        for number, stage in enumerate(recipe.stages, 1):
            run_stage(model, recipe, stage, number)
        if is_main():
            finish(model.eval(), recipe, ranks())
    except KeyboardInterrupt:
        if is_main():
            print(f"\nstopped; go on with: laval train {recipe.output / 'recipe.yaml'}", flush=True)
        raise
    return model.eval()


def run_stage(model: AdaptiveForCausalLM, recipe: Recipe, stage: Stage, number: int) -> None:
    name = f"{number}-{stage.objective}"
    folder = recipe.output / f"stage-{name}"
    if (folder / "done").exists():
        take_over(model, folder / "result")
        return
    data = sequences(stage.data or recipe.data, model.tokenizer, stage.tokens, recipe.seed + number)
    objective = objective_of(model, recipe, stage, data)
    metrics = Metrics(recipe.output / "metrics.jsonl", name, model.policy.layers)
    args = arguments(recipe, stage, folder, stage.steps(len(data), ranks()))
    with stoppable() as stop:
        trainer = ObjectiveTrainer(objective, stop, args=args, train_dataset=data, callbacks=[metrics])
        last = newest(folder)
        trainer.train(resume_from_checkpoint=str(last) if last else None)
    if trainer.state.global_step >= args.max_steps:
        conclude(trainer, folder)
    if stop.asked:
        print(f"{name} stopped at step {trainer.state.global_step} of {args.max_steps}")
        raise KeyboardInterrupt


def conclude(trainer: ObjectiveTrainer, folder: Path) -> None:
    """Settle the thresholds, save the stage's result, and mark it done."""
    settle(trainer.objective)
    if trainer.is_world_process_zero():
        save_plugin(trainer.objective.model, folder / "result")
        (folder / "done").touch()
    trainer.accelerator.wait_for_everyone()


def objective_of(model: AdaptiveForCausalLM, recipe: Recipe, stage: Stage, data: Sequences) -> Objective:
    model.policy.requires_grad_(True)
    if stage.objective == "anneal":
        return Anneal(model, stage, recipe.seed)
    return Align(model, stage, recipe.price, measured_sensitivity(model, recipe, data))


def measured_sensitivity(model: AdaptiveForCausalLM, recipe: Recipe, data: Sequences) -> dict[int, float]:
    """Measured once a run, then read from its folder."""
    path = recipe.output / SENSITIVITY
    if not path.exists():
        ids = torch.stack([data[i]["input_ids"] for i in range(min(len(data), PROBES * PROBE_BATCH))])
        nats = sensitivity(model.backbone, ids.to(model.device).split(PROBE_BATCH), model.policy.layers, recipe.seed)
        with atomic_write(path, "w") as file:
            json.dump(nats, file)
    return {int(layer): value for layer, value in json.loads(path.read_text()).items()}


def settle(objective: Objective) -> None:
    """Leave the model at the middle of the depths it was trained for."""
    depth = objective.stage.depth
    if depth:
        threshold = objective.controller.threshold(sum(depth) / len(depth))
        objective.policy.thresholds = dict.fromkeys(objective.policy.layers, threshold)
    objective.policy.requires_grad_(True)


def check(model: AdaptiveForCausalLM, recipe: Recipe) -> None:
    """What would otherwise be found out hours later, in the last stage or in calibration. ValueError or TypeError."""
    check_adaptive(model)
    if not isinstance(model.policy, FlexiDepthPolicy):
        raise ValueError(
            f"model has a {type(model.policy).__name__}, with nothing to train; attach FlexiDepth(...) to its base"
        )
    controller = DepthController(len(model.backbone.blocks), len(model.policy.layers))
    for depth in (*recipe.depths, *(depth for stage in recipe.stages for depth in stage.depth or ())):
        controller.check(depth)
    texts = [stage.data or recipe.data for stage in recipe.stages]
    texts += [calibration_data(recipe)] if recipe.calibrate else []
    for data in dict.fromkeys(texts):
        check_data(data, model.tokenizer)


def ranks() -> int:
    """How many processes torchrun or accelerate started."""
    return int(os.environ.get("WORLD_SIZE", 1))


def is_main() -> bool:
    return int(os.environ.get("RANK", 0)) == 0
