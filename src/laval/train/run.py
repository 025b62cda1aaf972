"""A whole training run: stages one after another, resumable at any moment, a calibrated plug-in at the end."""

from __future__ import annotations

import json
import signal
from contextlib import contextmanager
from pathlib import Path

import torch
from transformers.trainer_utils import get_last_checkpoint

from laval.config import save_config
from laval.models import AdaptiveForCausalLM
from laval.models.plugin import load_plugin, save_plugin
from laval.train.data import Sequences, sequences
from laval.train.objectives import Align, Anneal, Objective
from laval.train.recipe import Recipe, Stage
from laval.train.sensitivity import sensitivity
from laval.train.trainer import Metrics, ObjectiveTrainer, arguments

SENSITIVITY = "sensitivity.json"
PROBES, PROBE_BATCH = 8, 4  # batches and sequences for the one-time sensitivity measurement


def train(model: AdaptiveForCausalLM, recipe: Recipe) -> AdaptiveForCausalLM:
    """Carry out the recipe's stages on `model` (with `.tokenizer`); continues where an earlier run of it stopped.

    Everything goes to recipe.output: recipe.yaml, metrics.jsonl, a folder per stage with checkpoints and its result.
    ValueError for unusable data or a loss that is not finite; KeyboardInterrupt after a checkpoint was written.
    """
    recipe.output.mkdir(parents=True, exist_ok=True)
    save_config(recipe, recipe.output / "recipe.yaml")
    if recipe.threads:
        torch.set_num_threads(recipe.threads)
    for number, stage in enumerate(recipe.stages, 1):
        run_stage(model, recipe, stage, number)
    return model.eval()


def run_stage(model: AdaptiveForCausalLM, recipe: Recipe, stage: Stage, number: int) -> None:
    folder = recipe.output / f"stage-{number}-{stage.objective}"
    if (folder / "done").exists():
        adopt(model, folder / "result")
        return
    data = sequences(recipe.data, model.tokenizer, stage.tokens, recipe.seed + number)
    objective = objective_of(model, recipe, stage, data)
    trainer = ObjectiveTrainer(
        objective,
        args=arguments(recipe, stage, folder, steps_of(stage, data)),
        train_dataset=data,
        callbacks=[Metrics(recipe.output / "metrics.jsonl", f"{number}-{stage.objective}", model.policy.layers)],
    )
    with saved_when_stopped(trainer, recipe):
        trainer.train(resume_from_checkpoint=get_last_checkpoint(folder) if folder.is_dir() else None)
    settle(objective)
    save_plugin(model, folder / "result")
    (folder / "done").touch()


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
        nats = sensitivity(model.backbone, ids.split(PROBE_BATCH), model.policy.layers, recipe.seed)
        path.write_text(json.dumps(nats))
    return {int(layer): value for layer, value in json.loads(path.read_text()).items()}


def steps_of(stage: Stage, data: Sequences) -> int:
    return max(1, len(data) // (stage.batch * stage.accumulate))


def settle(objective: Objective) -> None:
    """Leave the model at the middle of the depths it was trained for."""
    depth = objective.stage.depth
    if depth:
        threshold = objective.controller.threshold(sum(depth) / len(depth))
        objective.policy.thresholds = dict.fromkeys(objective.policy.layers, threshold)
    objective.policy.requires_grad_(True)


def adopt(model: AdaptiveForCausalLM, folder: Path) -> None:
    """Take over the policy saved in `folder`."""
    saved = load_plugin(folder, base=model.base)
    model.policy.load_state_dict(saved.policy.state_dict())
    model.policy.set_thresholds(saved.policy.taus)


@contextmanager
def saved_when_stopped(trainer: ObjectiveTrainer, recipe: Recipe):
    """Ctrl-C and kill write a checkpoint and say how to go on."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        trainer._save_checkpoint(trainer.model, trial=None)
        print(
            f"\nstopped at step {trainer.state.global_step}; go on with: laval train {recipe.output / 'recipe.yaml'}"
        )
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
