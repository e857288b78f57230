"""The client of witnesses: submits journal heads and records the signed answers."""
