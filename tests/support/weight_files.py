"""Files of weights that are not as the library writes them."""

from __future__ import annotations

import json
import struct


def with_header(header: object) -> bytes:
    """Return a file with this header and without tensors."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text
