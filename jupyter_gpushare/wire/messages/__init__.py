"""Every message of the coordinator's socket, declared once, in the file of its topic, which ends with their union.

One JSON object per line, at most `MAX_LINE` bytes, in both directions. Between a process and the coordinator, the line
`DOORBELL` means "look at the page" and carries nothing. The type of a message is its `type` field; unknown fields are
ignored. The peer's user comes from SO_PEERCRED, never from a message.
"""

from __future__ import annotations

from .administration import *
from .administration import AdminRequest
from .base import *
from .clients import *
from .clients import ClientRequest
from .kernels import *
from .kernels import KernelMessage
from .processes import *
from .processes import Details, Hello
from .queries import *
from .queries import QueryRequest
from .responses import *
from .turns import *
from .turns import TurnRequest

Incoming = Hello | Details | KernelMessage | ClientRequest | TurnRequest | QueryRequest | AdminRequest
