"""From a notebook kernel itself, whether it uses CUDA or not."""

from __future__ import annotations

from typing import Literal

from .base import Identity, Message, Text


class Attach(Message, tag="attach", frozen=True, kw_only=True):
    """The notebook kernel itself, present also when it never initialises CUDA. Its end of file ends its requests."""

    client: Identity
    token: Text = ""
    label: Text = ""
    quota: Text = ""


class Cell(Message, tag="cell", frozen=True, kw_only=True):
    """A request of the attached client started or ended running.

    `cell_id`: of the notebook's cell that it came from, as its front end says; "": it does not say.
    """

    state: Literal["start", "end"]
    request: Identity
    cell_id: Text = ""


KernelMessage = Attach | Cell
