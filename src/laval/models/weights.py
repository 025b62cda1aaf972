"""Weights and records from outside: only safetensors and JSON are read, and what is wrong with them is named."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

AGAIN = "download or copy it again"
NUMBERS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHOWN = 5  # names that an error lists before "and N more"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
WEIGHT_FILES = (SINGLE, INDEX, "model-?????-of-?????.safetensors")


def read_json(path: Path) -> dict:
    """The object in a JSON file. ValueError that names the file when there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=once)
    except FileNotFoundError:
        raise ValueError(f"{path}: not found; {AGAIN}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not readable as JSON ({error}); {AGAIN}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected a JSON object, found {type(content).__name__}; {AGAIN}")
    return content


def once(pairs: list[tuple]) -> dict:
    """A JSON object; of a key given twice, nobody knows which value was meant."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} is given twice; expected once")
    return found


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a safetensors file, on the CPU. ValueError that names the file when it is missing or damaged."""
    if not path.is_file():
        raise ValueError(f"{path}: not found; {AGAIN}")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path}: damaged or cut off ({error}); {AGAIN}") from error


def read_model_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of model.safetensors, or of the files that model.safetensors.index.json names."""
    if (folder / SINGLE).is_file() or not (folder / INDEX).is_file():
        return read_tensors(folder / SINGLE)
    names = sorted(set(read_json(folder / INDEX).get("weight_map", {}).values()))
    outside = [name for name in names if Path(name).name != name]
    if outside:
        raise ValueError(f"{folder / INDEX}: expected names of files beside it, found {listed(outside)}")
    return {key: tensor for name in names for key, tensor in read_tensors(folder / name).items()}


def check_tensors(found: Mapping, expected: Mapping, source: Path | str) -> None:
    """ValueError unless both mappings have the same names and shapes, and every number found is finite in the number
    type expected."""
    misshapen = [
        f"{name} {list(found[name].shape)} (expected {list(tensor.shape)})"
        for name, tensor in expected.items()
        if name in found and found[name].shape != tensor.shape
    ]
    check_names(expected.keys() - found.keys(), found.keys() - expected.keys(), source, misshapen)
    foreign = [f"{name} ({tensor.dtype})" for name, tensor in found.items() if tensor.dtype not in NUMBERS]
    if foreign:
        raise ValueError(f"{source}: no float16, bfloat16, float32 or float64: {listed(foreign)}; convert them first")
    broken = [name for name, tensor in found.items() if not tensor.isfinite().all()]
    if broken:
        raise ValueError(f"{source}: not finite (NaN or infinite numbers): {listed(broken)}; use an earlier copy")
    check_range(found, expected, source)


def check_range(found: Mapping, expected: Mapping, source: Path | str) -> None:
    """ValueError for finite numbers that become infinite in the number type expected."""
    lost = [
        f"{name} (up to {tensor.abs().max():.3g}, {expected[name].dtype} ends at {limit(expected[name]):.3g})"
        for name, tensor in found.items()
        if not tensor.to(expected[name].dtype).isfinite().all()
    ]
    if lost:
        raise ValueError(
            f"{source}: too large for the number type: {listed(lost)}; use a wider one, such as dtype=torch.float32, "
            "or an earlier copy"
        )


def limit(tensor: torch.Tensor) -> float:
    return torch.finfo(tensor.dtype).max


def check_names(missing, unexpected, source: Path | str, misshapen=()) -> None:
    """ValueError that lists the tensors missing, unexpected and misshapen, if there are any."""
    wrong = {"missing": missing, "unexpected": unexpected, "of another shape": misshapen}
    said = [f"{what}: {listed(sorted(names))}" for what, names in wrong.items() if names]
    if said:
        raise ValueError(
            f"{source}: its tensors are not those its configuration asks for: {'; '.join(said)}. "
            f"The file belongs to another configuration or is incomplete: {AGAIN}"
        )


def listed(names) -> str:
    names = list(names)
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Errors of transformers' own loading as ValueErrors that name the file."""
    try:
        yield
    except SafetensorError as error:
        files = [path for path in sorted(folder.glob("*.safetensors")) if not opens(path)]
        raise ValueError(f"{listed(map(str, files)) or folder}: damaged or cut off ({error}); {AGAIN}") from error
    except RuntimeError as error:
        if "ignore_mismatched_sizes" not in str(error):
            raise
        raise ValueError(f"{folder}: weights of other shapes than its config.json asks for; {AGAIN}") from error
    except OSError as error:
        if "safetensors" not in str(error):
            raise
        raise ValueError(
            f"{folder}: holds no {SINGLE} (nor {INDEX}). Weights in other formats are never read, they can run code: "
            "convert them to safetensors first"
        ) from error


def opens(path: Path) -> bool:
    try:
        with safe_open(path, "pt"):
            return True
    except SafetensorError:
        return False
