"""Generated text as it comes, each token on the colour of its depth."""

from __future__ import annotations

from rich.console import Console
from transformers.generation.streamers import BaseStreamer

from laval.models.depth import known_depth
from laval.report import depth_text
from laval.report.glyphs import shown as glyphs
from laval.report.scale import LEAST_SPAN
from laval.report.tracing import Generation, trace_generation


class Stream(BaseStreamer):
    """Prints tokens one step late: a token's depth is known once it has been read.

    show: colour by depth, and where there is no colour write the depth after each token.
    """

    def __init__(self, model, console: Console, show: bool):
        self.model, self.console, self.show = model, console, show
        self.ids: list[int] = []
        self.printed = 0
        self.prompted = False

    def put(self, value) -> None:
        if not self.prompted:  # the first call brings the prompt
            self.prompted = True
            return
        if self.ids:
            self.print(int(self.model.recording.runs[-1][:, 0, -1].sum()))
        self.ids.append(int(value))

    def end(self) -> None:
        """The last token waits for its depth: see `finish`."""

    def finish(self, generation: Generation) -> None:
        if self.ids:
            self.print(int(generation.trace.depth[0, -1]), last=True)
        self.console.print()

    def print(self, depth: int, last: bool = False) -> None:
        """What the newest token adds to the text; a character made of several tokens comes with the last of them."""
        text = self.decoded()
        piece = text[self.printed :] if last or not text.endswith("\ufffd") else ""
        self.printed += len(piece)
        if not piece:
            return
        layers, marks = len(self.model.backbone.blocks), self.console.color_system is None
        shown = depth_text([piece], [depth], layers, floor_of(self.model), marks) if self.show else glyphs(piece)
        self.console.print(shown, end="", soft_wrap=True, markup=False, emoji=False)

    def decoded(self) -> str:
        if self.model.tokenizer is None:
            return "".join(f"{i} " for i in self.ids)
        return self.model.tokenizer.decode(self.ids, skip_special_tokens=True)


class PlainStream(Stream):
    """Prints every token at once, without its depth."""

    def __init__(self, model, console: Console):
        super().__init__(model, console, show=False)

    def put(self, value) -> None:
        if not self.prompted:
            self.prompted = True
            return
        self.ids.append(int(value))
        self.print(0)

    def end(self) -> None:
        """What waited for the rest of its character, and the end of the line."""
        self.print(0, last=True)
        self.console.print()


def streamed(model, ids, console: Console, show: bool, **options) -> Generation:
    """Generate after ids [1, T] and print as it comes; `options` as of `generate`."""
    stream = Stream(model, console, show)
    generation = trace_generation(model, ids, streamer=stream, **options)
    stream.finish(generation)
    return generation


def floor_of(model) -> int:
    """The depth at which the colours start: about as far below the mean as the mean is below all layers."""
    layers, routed = len(model.backbone.blocks), len(model.policy.layers)
    depth = known_depth(model)
    lowest = layers - routed if depth is None else max(layers - routed, round(2 * depth - layers) - 1)
    return max(0, min(lowest, layers - LEAST_SPAN))
