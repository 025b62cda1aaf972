"""laval draft: a small model that guesses ahead, for `generate --lossless`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from laval.commands.screen import Json, Model, open_model, prompt_ids, screen
from laval.text import conversation, read, records

if TYPE_CHECKING:  # help must not wait for torch: each function imports what it needs
    from laval.models import AdaptiveForCausalLM


def draft(
    model: Model,
    prompts: Annotated[list[Path], Option(help="Prompts (repeatable): text, one a line, or chat as .jsonl.")],
    work: Annotated[Path, Option(help="Folder for the model's answers; a stopped run goes on there.")],
    out: Annotated[Path | None, Option(help="Plug-in folder to write to. Default: MODEL itself.")] = None,
    limit: Annotated[int, Option(min=2, help="Prompts to answer, drawn from all.")] = 2000,
    new: Annotated[int, Option(min=2, help="Tokens of an answer at most.")] = 112,
    batch: Annotated[int, Option(min=1, help="Answers written side by side.")] = 128,
    epochs: Annotated[int, Option(min=1, help="Times that each answer is read.")] = 3,
    vocabulary: Annotated[int, Option(min=2, help="Frequent tokens that may be guessed.")] = 8192,
    seed: Annotated[int, Option(help="Of the prompts drawn, and of training.")] = 0,
    json: Json = False,
) -> None:
    """Train a draft that guesses ahead, for generate --lossless; saved beside the plug-in."""
    with screen(json) as on:
        from laval.speculate.keep import save_draft
        from laval.train.answers import Answers, write_answers
        from laval.train.draft import DraftRecipe, Teacher, train_draft

        adaptive = open_model(model, None, on)
        folder = target(adaptive, out)
        asked = drawn([text for path in prompts for text in questions(path)], limit, seed)
        ids = [prompt_ids(adaptive, text, None, new)[0].tolist() for text in asked]
        held, *told = write_answers(adaptive, ids, work, min(batch, len(ids) // 2), new)
        recipe = DraftRecipe(vocabulary, epochs, seed=seed)
        head = train_draft(adaptive, told, recipe)
        right = Teacher(adaptive.base, head.vocabulary).acceptance(head, Answers.load(held))
        path = save_draft(head, adaptive, folder)
        on.say(f"tokens guessed right ahead, of held-out answers: {', '.join(f'{share:.0%}' for share in right)}")
        on.say(f"saved: {path}", soft_wrap=True)
        on.document = {"draft": str(path), "acceptance": right, "prompts": len(asked), "batches": len(told)}


def target(model: AdaptiveForCausalLM, out: Path | None) -> Path:
    """The folder to write to. ValueError where a draft would lie beside no plug-in."""
    from laval.models.record import RECORD

    folder = model.folder if out is None else out
    if folder is None or not (folder / RECORD).is_file():
        raise ValueError(
            f"out is {out}; expected the folder of a plug-in (with {RECORD}), for a draft lies beside one"
        )
    return folder


def questions(path: Path) -> list[str]:
    """What people ask in a file: each line of a text, or the first words of the user in each conversation."""
    if path.suffix != ".jsonl":
        return [line for line in read(path).splitlines() if line.strip()]
    turns = (conversation(line, path, number) for number, line in records(path))
    asked = (next((turn["content"] for turn in each if turn["role"] == "user"), "") for each in turns)
    return [text for text in asked if text.strip()]


def drawn(asked: list[str], limit: int, seed: int) -> list[str]:
    """`limit` of them, each once, in random order. ValueError for fewer than two."""
    different = list(dict.fromkeys(asked))
    if len(different) < 2:
        raise ValueError(f"prompts: found {len(different)}; expected two at least, of which one is held out")
    return random.Random(seed).sample(different, min(limit, len(different)))
