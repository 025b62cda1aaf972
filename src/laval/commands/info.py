"""laval info: what a model is made of, or what this installation knows."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from laval import __version__
from laval.commands.calibrate import curve_table
from laval.commands.screen import Json, Screen, open_model, screen

if TYPE_CHECKING:  # help must not wait for torch: each function imports what it needs
    from laval.runtime import BreakEven


def info(
    model: Annotated[
        str | None, Argument(metavar="[MODEL]", help="smollm2, a folder, or OWNER/NAME.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """What a model is: method, layers, sizes, budget curve, ideal speed-up."""
    with screen(json) as out:
        out.document = installation()
        if model is None:
            show_installation(out)
            return
        adaptive = open_model(model, None, out)
        out.document |= facts(model, adaptive)
        show_model(out, adaptive)


def installation() -> dict:
    from laval.blocks import KNOWN_FAMILIES
    from laval.machine import cache_folder
    from laval.measure import machine_facts
    from laval.skip import METHODS

    machine = machine_facts()
    return {
        "versions": machine["versions"],
        "device": machine["device"],
        "threads": machine["threads"],
        "families": list(KNOWN_FAMILIES),
        "methods": list(METHODS),
        "cache": str(cache_folder()),
    }


def show_installation(out: Screen) -> None:
    known = out.document
    out.rows(
        {
            "laval": __version__,
            "with": ", ".join(f"{name} {number}" for name, number in known["versions"].items() if name != "laval"),
            "device": f"{known['device']}, {known['threads']} threads",
            "families": ", ".join(known["families"]),
            "methods": ", ".join(known["methods"]),
            "cache": known["cache"],
        }
    )
    out.say("\n[dim]laval info MODEL says what a model is made of[/]")


def facts(name: str, model) -> dict:
    """Sizes in MB (10^6 bytes) of the weights as loaded; the ideal speed-up at the depth the model is set to."""
    from laval.measure.model import model_cost
    from laval.models.depth import known_depth

    depth = known_depth(model)
    ideal = model_cost(model, prompt=512, new=128) if depth is not None else None
    return {
        "model": name,
        "base": model.config.base_name,
        "base_shape": model.config.base_shape,
        "method": model.config.method,
        "layers": len(model.backbone.blocks),
        "routed_layers": list(model.policy.layers),
        "parameters": {"base": count(model.base), "plugin": count(model.policy)},
        "megabytes": {"base": megabytes(model.base), "plugin": megabytes(model.policy), "on_disk": on_disk(name)},
        "mean_depth": depth,
        "ideal_speedup": {phase: ideal.phase_speedup(phase) for phase in ("prefill", "decode")} if ideal else None,
        "break_even": asdict(model.break_even) if model.break_even else None,
        "saved_flops": ideal.saved_share if ideal else None,
        "curve": [{"depth": point["depth"], "nats": point.get("nats")} for point in model.config.curve],
    }


def show_model(out: Screen, model) -> None:
    known = out.document
    routed, sizes, depth = known["routed_layers"], known["megabytes"], known["mean_depth"]
    out.rows(
        {
            "base": f"{known['base'] or 'unnamed'}, {known['parameters']['base']:,} parameters",
            "method": described(known["method"]),
            "routed": f"{len(routed)} of {known['layers']} layers: {', '.join(map(str, routed)) or 'none'}",
            "plug-in": f"{known['parameters']['plugin']:,} parameters, {sizes['plugin']:.1f} MB loaded"
            + (f", {sizes['on_disk']:.1f} MB on disk" if sizes["on_disk"] else ""),
            "depth": "not calibrated" if depth is None else f"{depth:.2f} of {known['layers']} layers per token",
        }
        | ideals(known)
        | ({"break-even": break_even_line(model.break_even)} if routed else {})
    )
    if model.config.curve:
        out.say("\n[bold]Budget curve[/] [dim]on its calibration text; --depth moves along it[/]")
        out.say(curve_table(model.config.curve))


def described(method: dict) -> str:
    fields = ", ".join(f"{key} {value}" for key, value in method.items() if key not in ("name", "layers"))
    return f"{method['name']}{f' ({fields})' if fields else ''}"


def ideals(known: dict) -> dict[str, str]:
    ideal = known["ideal_speedup"]
    if ideal is None:
        return {}
    return {
        "ideal": f"decoding {ideal['decode']:.2f}x, prefill {ideal['prefill']:.2f}x faster than dense on this machine"
    }


def break_even_line(rule: BreakEven | None) -> str:
    """Where skipping is turned off on this machine."""
    if rule is None:
        return "not learned on this machine: laval bench MODEL --learn"
    losing = [
        f"{name} at {', '.join(rows)} rows"
        for name, step in (("decoding", True), ("prefill", False))
        if (rows := [str(rows) for rows in (rule.decode if step else rule.prefill) if rule.loses(rows, step)])
    ]
    return f"learned at {rule.depth:.2f} layers: " + (
        f"every layer runs in {', '.join(losing)}" if losing else "skips"
    )


def count(module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def megabytes(module) -> float:
    return sum(parameter.numel() * parameter.itemsize for parameter in module.parameters()) / 1e6


def on_disk(name: str) -> float | None:
    """MB of the plug-in file, where the name leads to one on this machine."""
    from laval.models.load import DEFAULT, shipped_folder
    from laval.models.plugin import WEIGHTS

    path = (shipped_folder() if name == DEFAULT else Path(name)) / WEIGHTS
    return path.stat().st_size / 1e6 if path.is_file() else None
