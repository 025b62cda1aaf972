"""The Hugging Face Trainer with our objectives: plug-in checkpoints, NaN stop, JSONL metrics, collapse alarm."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from laval.files import atomic_write
from laval.models.plugin import load_plugin, save_plugin
from laval.train.objectives import Objective
from laval.train.recipe import Recipe, Stage

CONTROLLER = "controller.json"
COLLAPSE = (0.001, 0.999)


class ObjectiveTrainer(Trainer):
    """Trains the policy inside an Objective; checkpoints hold the plug-in, the optimizer and the place in the data."""

    def __init__(self, objective: Objective, **kwargs):
        super().__init__(model=objective, **kwargs)
        self.model_accepts_loss_kwargs = False  # our losses are means: accumulation divides them
        self.seen: list[dict] = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        objective: Objective = self.accelerator.unwrap_model(model)
        objective.step = self.state.global_step
        objective.progress = self.state.global_step / max(1, self.state.max_steps)
        result = model(**inputs)
        if not torch.isfinite(result["loss"]):
            raise ValueError(
                f"loss is {result['loss'].item()} at step {self.state.global_step}; expected a finite number. "
                "The checkpoints before it are good: lower lr, or look for broken text in the data"
            )
        self.seen.append({**result["figures"], "run_rates": result["run_rates"].tolist()})
        return (result["loss"], result) if return_outputs else result["loss"]

    def log(self, logs, *args, **kwargs) -> None:
        """The Trainer's figures and the means of ours since the last time."""
        if self.seen and "loss" in logs:
            names = [name for name in self.seen[0] if name != "run_rates"]
            logs |= {name: sum(entry[name] for entry in self.seen) / len(self.seen) for name in names}
            rates = torch.tensor([entry["run_rates"] for entry in self.seen]).mean(0)
            logs["run_rates"] = [round(rate, 4) for rate in rates.tolist()]
            self.seen = []
        super().log(logs, *args, **kwargs)

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)  # the data set is already drawn in its order

    def _save(self, output_dir=None, state_dict=None) -> None:
        folder, objective = Path(output_dir or self.args.output_dir), self.accelerator.unwrap_model(self.model)
        save_plugin(objective.model, folder)
        quantiles = objective.controller.quantiles
        with atomic_write(folder / CONTROLLER, "w") as file:
            json.dump({"quantiles": None if quantiles is None else quantiles.tolist()}, file)

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None) -> None:
        objective = self.accelerator.unwrap_model(model or self.model)
        saved = load_plugin(resume_from_checkpoint, base=objective.model.base)
        objective.policy.load_state_dict(saved.policy.state_dict())
        objective.policy.set_thresholds(saved.policy.taus)
        quantiles = json.loads((Path(resume_from_checkpoint) / CONTROLLER).read_text())["quantiles"]
        objective.controller.quantiles = None if quantiles is None else torch.tensor(quantiles)


class Metrics(TrainerCallback):
    """One JSON line for every log, appended to `path`; a warning when a layer is always or never skipped."""

    def __init__(self, path: Path, stage: str, layers: tuple[int, ...]):
        self.path, self.stage, self.layers = path, stage, layers
        self.start = time.time()

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if not state.is_world_process_zero or "loss" not in logs:
            return
        rates = dict(zip(self.layers, logs.get("run_rates", ()), strict=False))
        record = {"stage": self.stage, "step": state.global_step, "seconds": round(time.time() - self.start, 1)}
        with self.path.open("a") as file:
            file.write(json.dumps({**record, **logs, "alarm": self.collapsed(rates)}) + "\n")

    def collapsed(self, rates: dict[int, float]) -> list[str]:
        """Layers whose routing has collapsed: one choice for every token."""
        never = [layer for layer, rate in rates.items() if rate > COLLAPSE[1]]
        always = [layer for layer, rate in rates.items() if rate < COLLAPSE[0]]
        return [f"layer {layer} is never skipped" for layer in never] + [
            f"layer {layer} is always skipped" for layer in always
        ]


def arguments(recipe: Recipe, stage: Stage, folder: Path, steps: int) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=stage.batch,
        gradient_accumulation_steps=stage.accumulate,
        learning_rate=stage.lr,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": 0.05},
        warmup_steps=round(stage.warmup * steps),
        weight_decay=0.0,
        adam_beta1=0.9,
        adam_beta2=0.95,
        max_grad_norm=1.0,
        logging_steps=recipe.log_steps,
        logging_nan_inf_filter=False,
        save_steps=recipe.save_steps,
        save_total_limit=2,
        seed=recipe.seed,
        report_to=list(recipe.report_to) or "none",
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        disable_tqdm=False,
    )
