"""The ktpu machine in software: it executes instruction words, whole machines at once, bit for bit."""

from meshwright.simulator.assumptions import Assumptions
from meshwright.simulator.card import Card
from meshwright.simulator.cluster import Cluster
from meshwright.simulator.faults import (
    Deadlock,
    Kind,
    MachineFault,
    NotModelled,
    Report,
    Undefined,
    Unpredictable,
    Unsupported,
)
from meshwright.simulator.unit import Completion, Setting, Unit, UnitData, UnitFactory, Wires

__all__ = [
    "Assumptions",
    "Card",
    "Cluster",
    "Completion",
    "Deadlock",
    "Kind",
    "MachineFault",
    "NotModelled",
    "Report",
    "Setting",
    "Undefined",
    "Unit",
    "UnitData",
    "UnitFactory",
    "Unpredictable",
    "Unsupported",
    "Wires",
]
