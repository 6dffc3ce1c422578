"""A cluster against a plain model of it: any order of fills, sweeps over any grids, and drains."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulator.programs import CARD, fresh, words

from meshwright.numerics import fp22, mxfp7, product
from meshwright.targets.ktpu.isa import Drain, Fill, Gemm

AT = (2, 1)
ENTRIES = 24
"""Entries that are filled in each bank."""
IMAGES = 6
IMAGE_BYTES = ENTRIES * 256
OUT = 1 << 20


class Model:
    """L1 as rows of entries, tiles as codes; everything done at once and in order."""

    def __init__(self, images):
        self.images = images
        self.l1 = {}
        self.tiles = np.zeros((512, 4, 4), np.uint32)
        self.opened = 0

    def fill(self, side, bank, which):
        self.l1[side, bank] = self.images[which]

    def operand(self, side, bank, first, groups, blocks):
        entries = self.l1[side, bank][first : first + groups * blocks]
        rows = entries.reshape(groups, blocks, 4, 32).transpose(0, 2, 1, 3).reshape(groups * 4, blocks * 32)
        return mxfp7.quantise(np.ascontiguousarray(rows))

    def sweep(self, gemm):
        a = self.operand(0, gemm.abank, gemm.aoff, gemm.gm, gemm.nk)
        b = self.operand(1, gemm.bbank, gemm.boff, gemm.gn, gemm.nk)
        count = gemm.gm * gemm.gn
        tiles = self.tiles[:count].reshape(gemm.gm, gemm.gn, 4, 4).transpose(0, 2, 1, 3)
        start = np.ascontiguousarray(tiles).reshape(gemm.gm * 4, gemm.gn * 4) if gemm.acc else None
        codes = product.matmul(a, b, start=start).reshape(gemm.gm, 4, gemm.gn, 4)
        self.tiles[:count] = codes.transpose(0, 2, 1, 3).reshape(count, 4, 4)
        self.opened = max(self.opened, count)

    def drain(self, count):
        return fp22.drain(self.tiles[:count]).tobytes()


@st.composite
def sweeps(draw, opened):
    gm, gn, nk = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    where = {}
    for side, groups in (("a", gm), ("b", gn)):
        where[f"{side}bank"] = draw(st.integers(0, 1))
        where[f"{side}off"] = draw(st.integers(0, ENTRIES - groups * nk))
    return Gemm(gm=gm, gn=gn, nk=nk, acc=int(gm * gn <= opened and draw(st.booleans())), **where)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_program_gives_the_bits_of_the_model(data):
    images = np.random.default_rng(data.draw(st.integers(0, 99))).standard_normal((IMAGES, ENTRIES, 4, 32))
    images = images.astype(np.float16).view(np.uint16)
    card, model = fresh(), Model(images)
    for which, image in enumerate(images):
        card.write_block(CARD.host_addr(3, which * IMAGE_BYTES), image.tobytes())
    program, wanted = [], []

    def fill(side, bank, which):
        address = CARD.global_addr(3, which * IMAGE_BYTES)
        program.append(Fill(addr=address, n=ENTRIES, sel=side, fbank=bank))
        model.fill(side, bank, which)

    def drain(count):
        program.append(Drain(addr=CARD.global_addr(3, OUT + len(wanted) * 512), n=count))
        wanted.append(model.drain(count))

    for side, bank in ((0, 0), (0, 1), (1, 0), (1, 1)):
        fill(side, bank, data.draw(st.integers(0, IMAGES - 1)))
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["sweep", "sweep", "sweep", "drain", "fill"])):
            case "sweep":
                gemm = data.draw(sweeps(model.opened))
                program.append(gemm)
                model.sweep(gemm)
            case "drain" if model.opened:
                drain(data.draw(st.integers(1, model.opened)))
            case "fill":
                # A drain ends the sweep that may still read the bank.
                if model.opened:
                    drain(1)
                fill(data.draw(st.integers(0, 1)), data.draw(st.integers(0, 1)), data.draw(st.integers(0, IMAGES - 1)))
            case _:
                pass
    if model.opened:
        drain(model.opened)
    card.submit(3, AT, words(*program))
    card.run_until_idle()
    for at, bits in enumerate(wanted):
        assert card.read_block(CARD.host_addr(3, OUT + at * 512), len(bits)) == bits
