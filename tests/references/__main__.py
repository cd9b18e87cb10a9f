"""Writes what is made in docs/ anew."""

from tests.references import PARTS

for part in PARTS:
    part.document.write_text(part.renewed())
