"""Lines over two logarithmic axes, as an SVG file that needs no library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 110, 40, 50
COLOURS = ("#333333", "#c44e52", "#4c72b0", "#55a868", "#8172b2")
Lines = Mapping[str, Sequence[tuple[float, float]]]


def svg(lines: Lines, title: str, x_label: str, y_label: str) -> str:
    """The lines by name, each of points (x, y) above 0. Doublings mark the x axis, and 1, 2 and 5 the y axis."""
    xs, ys = ([point[axis] for points in lines.values() for point in points] for axis in (0, 1))
    marks = [m * 10.0**e for e in range(math.floor(math.log10(min(ys))), 7) for m in (1, 2, 5)]
    floor = max(mark for mark in marks if mark <= min(ys))
    ceiling = min(mark for mark in marks if mark >= max(ys) and mark > floor)

    def x_at(value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(value / min(xs)) / (math.log(max(xs) / min(xs)) or 1)

    def y_at(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(value / floor) / math.log(ceiling / floor)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _text(WIDTH / 2, TOP / 2, title, size=15),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_label),
        _text(LEFT - 10, TOP - 12, y_label, anchor="end"),
    ]
    for mark in (mark for mark in marks if floor <= mark <= ceiling):
        y = y_at(mark)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#dddddd"/>')
        parts.append(_text(LEFT - 10, y + 4, f"{mark:g}", anchor="end"))
    for value in sorted(set(xs)):
        short = f"{value / 1024:g}K" if value % 1024 == 0 else f"{value:g}"
        parts.append(_text(x_at(value), HEIGHT - BOTTOM + 20, short))
    for colour, (name, points) in zip(COLOURS, lines.items(), strict=False):
        path = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        x, y = points[-1]
        parts.append(_text(x_at(x) + 8, y_at(y) + 4, name, anchor="start", colour=colour))
    return "\n".join([*parts, "</svg>", ""])


def _text(x: float, y: float, text: str, anchor: str = "middle", size: int = 12, colour: str = "black") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escape(text)}</text>'
    )
