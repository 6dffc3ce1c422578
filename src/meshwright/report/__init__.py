"""Graphs for people: what each site has and does, in words and as a picture."""

from meshwright.report.overview import overview
from meshwright.report.picture import picture
from meshwright.report.summary import Summary, summarise

__all__ = ["Summary", "overview", "picture", "summarise"]
