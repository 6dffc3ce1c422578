"""Instruction words of the card: field tables, typed instructions, flits, legality, assembler text.

A cluster (`MG`) takes words of 256 bits: `Fill`, `Gemm`, `Drain`. A vector core (`VC`) takes payloads of 256 bits,
`Imem`, `Desc` and `Run`, which load and start code of 32-bit words. `Program` is a tuple of either.
"""

from meshwright.targets.ktpu.isa.assembler import assemble, assemble_code
from meshwright.targets.ktpu.isa.check import check_program
from meshwright.targets.ktpu.isa.cluster import ClusterInstruction, Drain, Fill, Gemm, decode_cluster
from meshwright.targets.ktpu.isa.disassembler import disassemble, disassemble_code
from meshwright.targets.ktpu.isa.fields import Field, Format, InstructionError
from meshwright.targets.ktpu.isa.flit import Flit
from meshwright.targets.ktpu.isa.payload import Desc, Imem, Payload, Run, decode_payload, load_code
from meshwright.targets.ktpu.isa.program import Program
from meshwright.targets.ktpu.isa.vector import VectorInstruction, decode_code, encode_code

__all__ = [
    "ClusterInstruction",
    "Desc",
    "Drain",
    "Field",
    "Fill",
    "Flit",
    "Format",
    "Gemm",
    "Imem",
    "InstructionError",
    "Payload",
    "Program",
    "Run",
    "VectorInstruction",
    "assemble",
    "assemble_code",
    "check_program",
    "decode_cluster",
    "decode_code",
    "decode_payload",
    "disassemble",
    "disassemble_code",
    "encode_code",
    "load_code",
]
