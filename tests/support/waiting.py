"""How tests wait: for an event, never for a time."""

from __future__ import annotations

PATIENCE_SECONDS = 600.0
"""After which an event that must come is missed. Only a test that fails waits so long, however
busy the machine is."""
