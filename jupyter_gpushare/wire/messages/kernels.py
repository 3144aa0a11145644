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
    """

    state: Literal["start", "end"]
    request: Identity
    cell_id: Text = ""


KernelMessage = Attach | Cell
