"""A minimal SVG writer: shapes and text with the fonts that are there, nothing fetched, nothing run."""

from __future__ import annotations

from xml.sax.saxutils import escape, quoteattr

CHARACTER = 0.602
"""Width of a character of a monospaced font, in parts of its size."""


class Drawing:
    """Elements in the order in which they are drawn."""

    def __init__(self) -> None:
        self._elements: list[str] = []

    def add(self, name: str, text: str | None = None, /, **attributes: str | float) -> None:
        """An element; an underscore in an attribute's name stands for a hyphen. Text is escaped."""
        written = "".join(f" {key.replace('_', '-')}={quoteattr(_number(value))}" for key, value in attributes.items())
        self._elements.append(f"<{name}{written}/>" if text is None else f"<{name}{written}>{escape(text)}</{name}>")

    def text(self, x: float, y: float, text: str, size: float = 10, fill: str = "#1d2733", **more: str | float) -> None:
        """A line of text whose baseline begins at (x, y)."""
        self.add("text", text, x=x, y=y, font_size=size, fill=fill, **more)

    def box(self, x: float, y: float, width: float, height: float, **attributes: str | float) -> None:
        """A rectangle."""
        self.add("rect", x=x, y=y, width=width, height=height, **attributes)

    def document(self, width: float, height: float, title: str) -> str:
        """The whole file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_number(width)} {_number(height)}" '
            f'width="{_number(width)}" height="{_number(height)}" role="img" '
            'font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, monospace">'
        )
        return "\n".join((head, f"<title>{escape(title)}</title>", *self._elements, "</svg>", ""))


def fitted(text: str, width: float, size: float) -> str:
    """`text`, cut with an ellipsis where it would be wider than `width`."""
    most = max(1, int(width / (size * CHARACTER)))
    return text if len(text) <= most else text[: most - 1] + "…"


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
