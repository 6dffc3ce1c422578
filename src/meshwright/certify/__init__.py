"""What can be proved of a graph, and the evidence."""

from meshwright.certify.certificate import (
    MEANING,
    OBLIGATIONS,
    Certificate,
    CertificateError,
    Entry,
    Verdict,
    Waiver,
    Witness,
    from_json,
    to_json,
)
from meshwright.certify.checker import recheck
from meshwright.certify.obligations import certify

__all__ = [
    "MEANING",
    "OBLIGATIONS",
    "Certificate",
    "CertificateError",
    "Entry",
    "Verdict",
    "Waiver",
    "Witness",
    "certify",
    "from_json",
    "recheck",
    "to_json",
]
