"""Messages of the coordinator's socket. Each message is declared in the file of its topic.

A line has one JSON object and at most `MAX_LINE` bytes, in both directions.
Between a process and the coordinator, the line `DOORBELL` means "read the page" and has no content.
The field `type` is the type of a message, and unknown fields are ignored.
No message decides the user of its connection.
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
from .processes import Details, Hello, Moved
from .queries import *
from .queries import QueryRequest
from .responses import *
from .turns import *
from .turns import TurnRequest

Incoming = Hello | Details | Moved | KernelMessage | ClientRequest | TurnRequest | QueryRequest | AdminRequest
