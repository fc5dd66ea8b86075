"""Installed Python distributions: what they declare, carry and need, read without importing them."""
