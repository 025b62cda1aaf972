"""The Hugging Face Trainer with our objectives: plug-in checkpoints, NaN stop, figures of all ranks in the log."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import torch
from torch.utils.data import SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from laval.compat import checkpointing_arguments
from laval.files import atomic_write
from laval.models.plugin import save_plugin
from laval.train.checkpoint import STAGING, staged, take_over
from laval.train.objectives import Objective
from laval.train.recipe import Recipe, Stage
from laval.train.stop import Stop

CONTROLLER = "controller.json"
KEEP = 2  # checkpoints


class ObjectiveTrainer(Trainer):
    """Trains the policy inside an Objective; checkpoints hold the plug-in, the optimizer and the place in the data."""

    def __init__(self, objective: Objective, stop: Stop | None = None, **kwargs):
        super().__init__(model=objective, **kwargs)
        self.model_accepts_loss_kwargs = False  # our losses are means: accumulation divides them
        self.seen: list[dict] = []
        self.add_callback(AfterStep(self, stop or Stop()))

    @property
    def objective(self) -> Objective:
        return self.accelerator.unwrap_model(self.model)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        self.objective.step = self.state.global_step
        self.objective.progress = self.state.global_step / max(1, self.state.max_steps)
        result = model(**inputs)
        if not torch.isfinite(result["loss"]):
            raise ValueError(
                f"loss is {result['loss'].item()} at step {self.state.global_step}; expected a finite number. "
                f"The checkpoints before it, in {self.args.output_dir}, are good: lower lr, or look for broken text "
                "in the data"
            )
        self.seen.append({**result["figures"], "run_rates": result["run_rates"].tolist()})
        return (result["loss"], result) if return_outputs else result["loss"]

    def log(self, logs, *args, **kwargs) -> None:
        """The Trainer's figures and the means of ours since the last time."""
        if self.seen and "loss" in logs:
            names = [name for name in self.seen[0] if name != "run_rates"]
            rows = [[entry[name] for name in names] + entry["run_rates"] for entry in self.seen]
            means = torch.tensor(rows, device=self.args.device).mean(0)  # [figures + Lr]
            means = self.accelerator.reduce(means, reduction="mean").tolist()
            logs |= dict(zip(names, means, strict=False))
            logs["run_rates"] = [round(rate, 4) for rate in means[len(names) :]]
            self.seen = []
        super().log(logs, *args, **kwargs)

    def _get_train_sampler(self, *args, **kwargs):
        return SequentialSampler(self.train_dataset)  # the data set is already drawn in its order

    def _get_output_dir(self, trial) -> str:
        return str(Path(super()._get_output_dir(trial)) / STAGING)

    def _save_checkpoint(self, model, trial) -> None:
        final = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        with staged(final, KEEP) if self.is_world_process_zero() else nullcontext():
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()  # each rank writes the state of its random numbers

    def _save(self, output_dir=None, state_dict=None) -> None:
        if not self.args.should_save:
            return
        folder = Path(output_dir or self.args.output_dir)
        save_plugin(self.objective.model, folder)
        quantiles = self.objective.controller.quantiles
        with atomic_write(folder / CONTROLLER, "w") as file:
            json.dump({"quantiles": None if quantiles is None else quantiles.tolist()}, file)

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None) -> None:
        objective = self.objective
        take_over(objective.model, Path(resume_from_checkpoint))
        quantiles = json.loads((Path(resume_from_checkpoint) / CONTROLLER).read_text())["quantiles"]
        objective.controller.quantiles = None if quantiles is None else torch.tensor(quantiles)


class AfterStep(TrainerCallback):
    """Between two updates: the controller learns the scores, and a wish to stop is granted."""

    def __init__(self, trainer: ObjectiveTrainer, stop: Stop):
        self.trainer, self.stop = trainer, stop

    def on_step_end(self, args, state, control, **kwargs) -> None:
        self.trainer.objective.end_step(self.trainer.accelerator.gather)
        if self.stop.agreed(self.trainer.accelerator):
            control.should_save = control.should_training_stop = True


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
        use_cpu=not torch.accelerator.is_available(),  # unsaid, ranks on CPUs would train each on its own
        seed=recipe.seed,
        report_to=list(recipe.report_to) or "none",
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,
        disable_tqdm=False,
        **(checkpointing_arguments() if recipe.checkpointing else {}),
    )
