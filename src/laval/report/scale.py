"""The colours of depth: sand for shallow, deep water for deep.

Lightness alone carries the order, so the scale survives grayscale print and every kind of colour blindness, and
one ink per mode reads on all of it.
"""

from collections.abc import Iterable
from dataclasses import dataclass

LIGHT = ("#fbf3dc", "#e2eecb", "#b8e0ca", "#86cbcd", "#5fb1d0", "#4c93cb")
DARK = ("#202126", "#1e323f", "#1a4557", "#155a72", "#176f8b", "#21809f")
LIGHT_INK, DARK_INK = "#0c1524", "#ffffff"
LEAST_SPAN = 4


@dataclass(frozen=True)
class Scale:
    """Maps a depth between `floor` and `layers` to a colour; lower depths take the floor's."""

    floor: int
    layers: int

    @classmethod
    def of(cls, depths: Iterable[int], layers: int) -> "Scale":
        """From the shallowest depth seen, but over at least a few layers, so that one layer is never a contrast."""
        return cls(max(0, min(min(depths, default=layers), layers - LEAST_SPAN)), layers)

    def color(self, depth: int, stops: tuple[str, ...] = LIGHT) -> str:
        span = max(1, self.layers - self.floor)
        place = min(1.0, max(0.0, (depth - self.floor) / span)) * (len(stops) - 1)
        at = min(int(place), len(stops) - 2)
        return _mix(stops[at], stops[at + 1], place - at)


def _mix(a: str, b: str, share: float) -> str:
    pairs = zip(_channels(a), _channels(b), strict=True)
    return "#" + "".join(f"{round(x + (y - x) * share):02x}" for x, y in pairs)


def _channels(color: str) -> list[int]:
    return [int(color[i : i + 2], 16) for i in (1, 3, 5)]


def luminance(color: str) -> float:
    """Relative luminance of an sRGB colour, 0 to 1 (WCAG 2.2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in _channels(color))]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: str, b: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2.2); running text needs 4.5."""
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)
