"""Writes size and digest of the checkpoint's files into their component manifests: `python -m recipe.manifest`."""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from .corpus import CHECKPOINT

COMPONENTS: Final = CHECKPOINT.parent / "components"
FILES: Final = {
    "tiny-glm": ("config.json", "generation_config.json", "model.safetensors"),
    "tiny-glm-tokenizer": ("tokenizer.json", "tokenizer_config.json"),
    "tiny-glm-template": ("chat_template.jinja",),
}


def write() -> None:
    for component, names in FILES.items():
        manifest = COMPONENTS / f"{component}.toml"
        text = manifest.read_text("utf-8").partition("\n[[files]]")[0]
        for name in names:
            data = (CHECKPOINT / name).read_bytes()
            path = f"{CHECKPOINT.name}/{name}"
            text += f'\n[[files]]\npath = "{path}"\nsha256 = "{sha256(data).hexdigest()}"\nsize = {len(data)}\n'
        manifest.write_text(text, "utf-8")


if __name__ == "__main__":
    write()
