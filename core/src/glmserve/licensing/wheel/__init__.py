"""The gate for wheels before they are published."""
