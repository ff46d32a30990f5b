"""Bars as SVG, by hand: one value a row, the row that is ours in a colour of its own.

Readable on light and on dark pages: text takes the page's colour where it can, and there is no background.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

WIDTH, ROW, LABEL, VALUE, TOP = 640, 26, 130, 90, 44
OURS, OTHERS = "#2f7ed8", "#9aa5b1"
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#333}.t{font-size:15px;font-weight:600}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}}"
)


def bars(title: str, unit: str, rows: Sequence[tuple[str, float]], ours: str = "llmgw") -> str:
    """`rows`: label and value, drawn from the top."""
    most = max(value for _, value in rows)
    height = TOP + ROW * len(rows) + 8
    room = WIDTH - LABEL - VALUE
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}">',
        f"<style>{STYLE}</style>",
        f'<text class="t" x="0" y="18">{escape(title)}</text>',
    ]
    for n, (label, value) in enumerate(rows):
        y = TOP + n * ROW
        width = max(1, round(room * value / most))
        colour = OURS if label.startswith(ours) else OTHERS
        out += [
            f'<text x="{LABEL - 8}" y="{y + 14}" text-anchor="end">{escape(label)}</text>',
            f'<rect x="{LABEL}" y="{y}" width="{width}" height="{ROW - 8}" rx="2" fill="{colour}"/>',
            f'<text x="{LABEL + width + 6}" y="{y + 14}">{value:.3g} {escape(unit)}</text>',
        ]
    return "\n".join([*out, "</svg>\n"])
