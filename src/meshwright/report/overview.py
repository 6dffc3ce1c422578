"""A graph as text by site: sites that are alike on one line."""

from __future__ import annotations

from collections import defaultdict

from meshwright.report.summary import SiteSummary, Summary
from meshwright.report.words import amount

_MOST_NAMED = 6
_MOST_LINES = 200


def overview(summary: Summary) -> str:
    """Title, tensors, then chip by chip what its sites do, multicasts, and bytes over links; ends with a newline."""
    lines = [summary.title]
    lines += [f"input   {text}" for text in summary.inputs]
    lines += [f"output  {text}" for text in summary.outputs]
    for chip in summary.chips:
        here = [site for site in summary.sites if site.site.chip == chip]
        loaded, stored = summary.loaded.get(chip, 0), summary.stored.get(chip, 0)
        lines += ["", f"chip {chip}: loads {amount(loaded)}, stores {amount(stored)}"]
        lines += _cut([f"  {line}" for line in _sites(here)])
    if summary.multicasts:
        lines += ["", "multicast"]
        lines += _cut(
            [
                f"  {group.sender} to ({group.low[0]},{group.low[1]})..({group.high[0]},{group.high[1]}): "
                f"{', '.join(group.tensors) or 'nothing'}"
                for group in summary.multicasts
            ]
        )
    if summary.moved:
        lines += ["", "links"]
        lines += _cut([f"  {a} -> {b}  {amount(count)}" for (a, b), count in sorted(summary.moved.items())])
    if summary.problem is not None:
        lines += ["", f"bytes over links are not known: {summary.problem}"]
    return "\n".join(lines) + "\n"


def _sites(here: list[SiteSummary]) -> list[str]:
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for site in here:
        alike[_contents(site)].append(f"({site.site.x},{site.site.y})")
    return [f"{_named(places)}  {contents}" for contents, places in alike.items()]


def _contents(site: SiteSummary) -> str:
    work = "; ".join(map(str, site.work)) or "nothing"
    return f"{work} | {'; '.join(map(str, site.held)) or 'no buffer'}"


def _named(places: list[str]) -> str:
    if len(places) <= _MOST_NAMED:
        return " ".join(places)
    return f"{' '.join(places[: _MOST_NAMED - 1])} and {len(places) - _MOST_NAMED + 1} more"


def _cut(lines: list[str]) -> list[str]:
    if len(lines) <= _MOST_LINES:
        return lines
    return [*lines[:_MOST_LINES], f"  and {len(lines) - _MOST_LINES} more"]
