# SPDX-License-Identifier: MIT OR Apache-2.0
"""Draws the two figures of the comparison as plain SVG."""

import math

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 820, 470, 70, 24, 44, 56
# Colours that colour-blind readers can distinguish.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000"]


class Figure:
    """Axes with logarithmic y; x is a fraction of the width."""

    def __init__(self, title, x_title, y_title, low, high):
        self.low, self.high = math.log10(low), math.log10(high)
        self.parts, self.legend = [], []
        self.text(WIDTH / 2, 22, title, "middle", 16)
        self.text(LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - 14, x_title, "middle")
        self.parts.append(
            f'<text transform="translate(18 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" '
            f'text-anchor="middle" font-size="13">{escape(y_title)}</text>'
        )
        self.parts.append(
            f'<rect x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
            f'height="{HEIGHT - TOP - BOTTOM}" fill="none" stroke="#888"/>'
        )
        for power in range(math.floor(self.low), math.ceil(self.high) + 1):
            for digit in (1, 2, 5):
                value = digit * 10.0 ** power
                if low <= value <= high:
                    y = self.y(value)
                    grey = "#ccc" if digit == 1 else "#eee"
                    self.parts.append(
                        f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{grey}"/>'
                    )
                    self.text(LEFT - 6, y + 4, f"{value:g}", "end")

    def text(self, x, y, words, anchor="start", size=13, colour="#222"):
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
            f'fill="{colour}">{escape(words)}</text>'
        )

    def x(self, share):
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(self, value):
        share = (math.log10(max(value, 1e-9)) - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - min(max(share, 0), 1) * (HEIGHT - TOP - BOTTOM)

    def tick(self, share, words):
        self.parts.append(f'<path d="M{self.x(share):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eee"/>')
        self.text(self.x(share), HEIGHT - BOTTOM + 18, words, "middle")

    def line(self, points, label, marks=False, dashed=False):
        """Points as pairs of fraction and value."""
        colour = COLOURS[len(self.legend) % len(COLOURS)]
        self.legend.append((label, colour, dashed))
        at = [(self.x(share), self.y(value)) for share, value in points]
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in at)
        self.parts.append(
            f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
        )
        if marks:
            self.parts += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in at
            ]

    def svg(self, right=False):
        x = WIDTH - RIGHT - 320 if right else LEFT + 14
        y = HEIGHT - BOTTOM - 18 * len(self.legend) - 4 if right else TOP + 8
        for i, (label, colour, dashed) in enumerate(self.legend):
            dash = ' stroke-dasharray="6 4"' if dashed else ""
            self.parts.append(
                f'<path d="M{x} {y + 9 + 18 * i}h26" stroke="{colour}" stroke-width="2.5"{dash}/>'
            )
            self.text(x + 32, y + 13 + 18 * i, label)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">\n'
            '<rect width="100%" height="100%" fill="#fff"/>\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


def escape(words):
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def latency(named_histograms, named_points, when):
    """Latency by percentile: [label, {bucket end: count}], and [label, [(percentile, us)]] where
    only percentiles are known."""
    ends = [end for _, histogram in named_histograms for end in histogram] + [
        us for _, points in named_points for _, us in points
    ]
    low = min(ends) * 0.7
    curves = []
    for label, histogram in named_histograms:
        total, below, points = sum(histogram.values()), 0, []
        for end in sorted(histogram):
            # A bucket's samples lie below its end.
            points.append((nines(below / total), end))
            below += histogram[end]
        curves.append(
            (
                label,
                [point for point in points if point[0] <= 1]
                + [(min(1, nines(1 - 1 / total)), points[-1][1])],
            )
        )
    shown = [value for _, points in curves for share, value in points if share <= 1]
    figure = Figure(
        f"Latency, half round trip ({when})", "percentile", "microseconds", low,
        max(shown + [low * 4]) * 1.3,
    )
    for percent in (0, 50, 90, 99, 99.9, 99.99):
        figure.tick(nines(percent / 100), f"{percent:g}")
    for label, points in curves:
        figure.line(points, label)
    for label, points in named_points:
        figure.line([(nines(percent / 100), us) for percent, us in points], label, marks=True)
    return figure.svg()


def nines(share):
    """The fraction of the width, 0 to 1, for the percentiles 0 to 99.999."""
    return -math.log10(max(1 - share, 1e-12)) / 5


def bandwidth(named_curves, flat, when):
    """MB/s over size: [label, {bytes: MB/s}], and [label, MB/s] for figures without a size."""
    sizes = sorted({size for _, curve in named_curves for size in curve})
    values = [v for _, curve in named_curves for v in curve.values()] + [v for _, v in flat]
    span = math.log2(sizes[-1] / sizes[0]) or 1
    figure = Figure(
        f"Bandwidth over message size ({when})", "bytes of a message", "MB/s (10^6 bytes)",
        min(values) * 0.7, max(values) * 1.5,
    )
    for size in sizes:
        words = f"{size >> 20}M" if size >> 20 else f"{size >> 10}K" if size >> 10 else str(size)
        figure.tick(math.log2(size / sizes[0]) / span, words)
    for label, curve in named_curves:
        figure.line(
            [(math.log2(size / sizes[0]) / span, curve[size]) for size in sorted(curve)], label,
            marks=True,
        )
    for label, value in flat:
        figure.line([(0, value), (1, value)], label, dashed=True)
    return figure.svg(right=True)
