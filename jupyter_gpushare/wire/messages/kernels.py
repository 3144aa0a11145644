"""Messages of a notebook kernel, with or without CUDA."""

from __future__ import annotations

from typing import Literal

from .base import Identity, Message, Text


class Attach(Message, tag="attach", frozen=True, kw_only=True):
    """First message of a notebook kernel, even if the kernel never initialises CUDA.

    The end of the connection ends the kernel's cells.
    """

    client: Identity
    token: Text = ""
    label: Text = ""
    quota: Text = ""


class Cell(Message, tag="cell", frozen=True, kw_only=True):
    """Start or end of a request that the attached kernel executes.

    `cell_id` is the front end's ID of the notebook cell, or empty if the front end sends none.
    `text_hash` is a keyed hash of the cell's text, by which a cell that runs again is recognised, or empty.
    """

    state: Literal["start", "end"]
    request: Identity
    cell_id: Text = ""
    text_hash: Text = ""


KernelMessage = Attach | Cell
