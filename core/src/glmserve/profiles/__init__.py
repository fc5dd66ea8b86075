"""Profiles: which model, which providers, which sizes, in one strict TOML file."""

from .load import ProfileEntry, load_profile, received_profile, send_profile, shipped_profiles
from .schema import Profile

__all__ = ["Profile", "ProfileEntry", "load_profile", "received_profile", "send_profile", "shipped_profiles"]
