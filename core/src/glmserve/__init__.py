"""glmserve: serve large open models through four seams."""

from importlib.metadata import version

__version__ = version("glmserve")
