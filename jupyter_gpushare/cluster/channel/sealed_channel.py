"""Encryption of the lines between a Jupyter server and the node agent.

An engine may send lines over a network in plain text, as `srun` does, and the lines contain the keys of kernels.
So both ends agree on keys by X25519 (RFC 7748) and HKDF (RFC 5869), and seal each line by ChaCha20-Poly1305 (RFC 8439).
The engine still has to authenticate the two ends: the channel protects against recording, not against an engine that
connects the server with another program.
"""

from __future__ import annotations

import base64
import binascii
import json

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError as error:
    raise ImportError(
        "kernels on other hosts need the package cryptography: pip install jupyter-gpushare[cluster]"
    ) from error

from .messages import VERSION

_GREETING = "gpushare-node"
_CONTEXT = b"jupyter-gpushare node channel 1"


class ChannelError(ValueError):
    """Line that is no greeting of a node, or that another program has written or changed."""


class VersionError(ChannelError):
    """Greeting of a node agent with another version of the messages."""


class SealedChannel:
    """One end of the channel. Lines are sealed and opened in the order of the channel."""

    def __init__(self, is_server: bool) -> None:
        self._private = X25519PrivateKey.generate()
        self._is_server = is_server
        self._sent = self._received = 0
        self._sending: ChaCha20Poly1305 | None = None
        self._receiving: ChaCha20Poly1305 | None = None

    def greeting(self) -> bytes:
        """Return the first line of this end, the only one in plain text."""
        public = base64.b64encode(self._private.public_key().public_bytes_raw()).decode()
        return json.dumps({_GREETING: VERSION, "public_key": public}).encode() + b"\n"

    def accept(self, line: bytes) -> None:
        """Take the greeting of the other end. Raise ChannelError for any other line, such as a message of a shell."""
        try:
            greeting = json.loads(line)
            version, public = greeting[_GREETING], base64.b64decode(greeting["public_key"], validate=True)
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except (ValueError, KeyError, TypeError) as error:
            raise ChannelError("the line is no greeting of a node") from error
        if version != VERSION:
            raise VersionError(
                f"the other end has version {version} of the messages, and this end has version {VERSION}"
            )
        keys = HKDF(SHA256(), 64, None, _CONTEXT).derive(shared)
        own, other = (keys[:32], keys[32:]) if self._is_server else (keys[32:], keys[:32])
        self._sending, self._receiving = ChaCha20Poly1305(own), ChaCha20Poly1305(other)

    def seal(self, text: bytes) -> bytes:
        """Return a line with this text."""
        assert self._sending is not None
        nonce = self._sent.to_bytes(12, "little")
        self._sent += 1
        return base64.b64encode(self._sending.encrypt(nonce, text, None)) + b"\n"

    def open(self, line: bytes) -> bytes:
        """Return the text of the next line. Raise ChannelError for a line that the other end has not written."""
        assert self._receiving is not None
        try:
            text = self._receiving.decrypt(
                self._received.to_bytes(12, "little"), base64.b64decode(line.strip(), validate=True), None
            )
        except (InvalidTag, binascii.Error) as error:
            raise ChannelError("the line is not the next one of the other end") from error
        self._received += 1
        return text
