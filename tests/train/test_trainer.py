"""The Trainer with our objectives, and an adaptive model in a plain Trainer."""

from __future__ import annotations

import errno
import json
import logging

import pytest
import torch
from transformers import Trainer, TrainingArguments

from laval.files import atomic_write
from laval.skip import FlexiDepthPolicy
from laval.train import trainer as module
from laval.train.checkpoint import checkpoints, newest
from laval.train.metrics import Metrics, read_metrics
from laval.train.objectives import Anneal
from laval.train.run import train
from laval.train.trainer import ObjectiveTrainer, arguments
from tests.train.runs import ANNEAL, LAYERS, batch, fresh, recipe, routed, stage, weights


def trained(folder, batch_size: int, accumulate: int, steps: int = 3, checkpointing: bool = False, **fields):
    """A model after `steps` updates on the same 4 * steps sequences, and the losses on the way."""
    chosen = stage(batch=batch_size, accumulate=accumulate, warmup=0.0, **fields)
    model = routed()
    data = [{"input_ids": row} for row in batch(4 * steps)]
    args = arguments(recipe(folder, checkpointing=checkpointing), chosen, folder / "stage", steps)
    trainer = ObjectiveTrainer(Anneal(model, chosen, seed=0), args=args, train_dataset=data)
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    return model, logs


@pytest.mark.parametrize("fields", [{"depth": [2.2, 3.8]}, {"depth": None, "alpha": 1e-1, "distill": 0.0}])
def test_accumulated_batches_are_one_large_batch(tmp_path, fields):
    """Loss, norm of the gradients (the penalty's included), and what the controller does with them."""
    whole, logs = trained(tmp_path / "whole", 4, 1, **fields)
    parts, other = trained(tmp_path / "parts", 1, 4, **fields)
    for a, b in zip(logs, other, strict=True):
        for name in ("loss", "grad_norm", "depth", "lm"):
            assert a[name] == pytest.approx(b[name], rel=1e-4), name
    torch.testing.assert_close(weights(whole), weights(parts), rtol=0, atol=1e-5)
    assert (weights(whole) - weights(routed())).abs().max() > 1e-3


def test_gradient_checkpointing_changes_nothing(tmp_path, monkeypatch):
    route, counted = FlexiDepthPolicy.route, []
    monkeypatch.setattr(FlexiDepthPolicy, "route", lambda *arguments: counted.append(1) or route(*arguments))
    plain, _ = trained(tmp_path / "plain", 4, 1, depth=None, alpha=1e-1)
    once = len(counted)
    saving, _ = trained(tmp_path / "saving", 4, 1, checkpointing=True, depth=None, alpha=1e-1)
    assert len(counted) == once + 2 * once  # forward, and again in the backward pass
    torch.testing.assert_close(weights(plain), weights(saving), rtol=0, atol=1e-6)


class OneOfEach:
    """A model in Trainer that needs no more than rows with labels."""

    def __init__(self, rows):
        labels = rows.clone()
        labels[0, :10] = -100  # rows that count differently many tokens
        self.rows = [{"input_ids": ids, "labels": target} for ids, target in zip(rows, labels, strict=True)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def plainly_trained(folder, batch_size, accumulate):
    model = routed()
    args = TrainingArguments(
        output_dir=str(folder),
        max_steps=1,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulate,
        learning_rate=1e-3,
        optim="sgd",
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        dataloader_pin_memory=False,
        max_grad_norm=1e9,
    )
    trainer = Trainer(model=model, args=args, train_dataset=OneOfEach(batch(4)))
    trainer.train()
    return model, trainer.state.log_history[0]


def test_an_adaptive_model_is_an_ordinary_input_to_trainer(tmp_path):
    whole, log = plainly_trained(tmp_path, 4, 1)
    parts, other = plainly_trained(tmp_path, 1, 4)
    assert log["loss"] == pytest.approx(other["loss"], rel=1e-5)
    assert log["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-4)
    torch.testing.assert_close(weights(whole), weights(parts), rtol=0, atol=1e-7)
    assert not torch.equal(weights(whole), weights(routed()))


def broken_at(monkeypatch, step: int):
    """Make the loss not a number at one step."""
    right = Anneal.loss

    def loss(self, *arguments):
        value, figures = right(self, *arguments)
        return value * (float("nan") if self.step == step else 1.0), figures

    monkeypatch.setattr(Anneal, "loss", loss)


def test_a_loss_that_is_no_number_stops_and_leaves_earlier_checkpoints(tmp_path, monkeypatch):
    broken_at(monkeypatch, 5)
    run = recipe(tmp_path, stages=[ANNEAL])
    with pytest.raises(ValueError, match=r"loss is nan at step 5; expected a finite number.*lower lr"):
        train(fresh(), run)
    folder = run.output / "stage-1-anneal"
    assert [path.name for path in checkpoints(folder)] == ["checkpoint-2", "checkpoint-4"]
    monkeypatch.undo()
    train(fresh(), run)  # goes on from step 4
    assert (run.output / "plugin" / "plugin.safetensors").is_file()
    assert [entry["step"] for entry in read_metrics(run.output / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]


def full_from(monkeypatch, name: str, call: int):
    """The disk is full at the `call`-th use of torch.save, or of our own files."""
    counted, right = {"calls": 0}, {"torch": torch.save, "ours": atomic_write}[name]

    def fails(*arguments, **options):
        counted["calls"] += 1
        if counted["calls"] < call:
            return right(*arguments, **options)
        if name == "torch":
            raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((torch, "save") if name == "torch" else (module, "atomic_write")), fails)


@pytest.mark.parametrize(("name", "call"), [("torch", 4), ("torch", 5), ("torch", 6), ("ours", 2)])
def test_a_full_disk_loses_no_checkpoint(tmp_path, monkeypatch, name, call):
    run = recipe(tmp_path, stages=[ANNEAL])
    full_from(monkeypatch, name, call)
    with pytest.raises(OSError, match=r"no space left to save .*checkpoint-4.*; nothing was written. Free some space"):
        train(fresh(), run)
    folder = run.output / "stage-1-anneal"
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-2"]
    monkeypatch.undo()
    model, twin = train(fresh(), run), train(fresh(), recipe(tmp_path, stages=[ANNEAL], output=str(tmp_path / "twin")))
    torch.testing.assert_close(weights(model), weights(twin), rtol=0, atol=1e-6)


def test_a_checkpoint_cut_off_by_an_earlier_release_is_passed_over(tmp_path):
    for step, state in ((50, "{}"), (100, "{}"), (150, '{"global'), (200, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if state is not None:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    assert newest(tmp_path).name == "checkpoint-100"
    assert newest(tmp_path / "nowhere") is None


def test_metrics_have_run_rates_by_layer_and_the_progress_bar_stays(tmp_path, capfd):
    run = recipe(tmp_path)
    train(fresh(), run)
    entries = read_metrics(run.output / "metrics.jsonl")
    assert [(entry["stage"], entry["step"]) for entry in entries] == [
        *(("1-align", step) for step in range(1, 9)),
        *(("2-anneal", step) for step in range(1, 7)),
    ]
    for entry in entries:
        assert len(entry["run_rates"]) == len(LAYERS) and all(0 <= rate <= 1 for rate in entry["run_rates"])
        assert entry["depth"] == pytest.approx(1 + sum(entry["run_rates"]), abs=1e-3)
        assert {"loss", "learning_rate", "grad_norm", "seconds", "alarm"} <= entry.keys()
    assert "8/8" in capfd.readouterr().err


class At:
    """What a callback is told of the Trainer's state."""

    is_world_process_zero = True

    def __init__(self, step):
        self.global_step = step


def test_resuming_takes_back_the_lines_after_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [{"stage": "1-align", "step": 9, "seconds": 7.0}]
    lines += [{"stage": "2-anneal", "step": step, "seconds": 10.0 * step} for step in (1, 2, 3)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"stage": "2-ann')
    metrics = Metrics(path, "2-anneal", (1, 2))
    metrics.on_train_begin(None, At(2), None)
    metrics.on_log(None, At(3), None, logs={"loss": 1.0, "run_rates": [0.5, 0.5]})
    entries, kept = read_metrics(path), [("1-align", 9), ("2-anneal", 1), ("2-anneal", 2), ("2-anneal", 3)]
    assert [(entry["stage"], entry["step"]) for entry in entries] == kept
    assert 20 <= entries[-1]["seconds"] < 25  # time goes on where it stopped


def test_collapse_rings_after_several_logs_and_warns_once(tmp_path, caplog):
    metrics = Metrics(tmp_path / "metrics.jsonl", "2-anneal", (3, 5, 8))
    rates = [[1.0, 0.0, 0.5], [1.0, 0.2, 0.5], [1.0, 0.0, 0.5], [1.0, 0.0, 0.5], [1.0, 0.0, 0.5], [0.5, 0.0, 0.5]]
    with caplog.at_level(logging.WARNING, "laval"):
        for step, run_rates in enumerate(rates, 1):
            metrics.on_log(None, At(step), None, logs={"loss": 1.0, "run_rates": run_rates})
    never, always = "layer 3 is never skipped", "layer 5 is always skipped"
    alarms = [entry["alarm"] for entry in read_metrics(metrics.path)]
    assert alarms == [[], [], [never], [never], [never, always], [always]]
    assert [record.getMessage().split(": ")[1].split(" (")[0] for record in caplog.records] == [never, always]
