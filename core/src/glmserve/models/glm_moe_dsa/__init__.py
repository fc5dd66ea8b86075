"""Family `glm_moe_dsa`: GLM-5, 5.1, 5.2 and 5.3 (multi-head latent attention, DeepSeek sparse attention, experts)."""

from .family import GlmMoeDsa

__all__ = ["GlmMoeDsa"]
