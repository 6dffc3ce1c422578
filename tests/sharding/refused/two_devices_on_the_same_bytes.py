"""Every byte of DRAM has one owner."""

import meshwright as mw
from meshwright.runtime.device import Card, Device

card = Card(mw.load_machine("ktpu-v13p"))
Device(card, 0)
Device(card, 0)
