"""Few configs for many shapes, and a readable function that chooses among them.

A matrix of shapes and configs is covered greedily: the config that helps most comes next. A small decision tree
on the shape's dims then chooses among them. It is written as Python that does not need this package.
"""

from tuner.distil.distilling import Distilled, Losses, Shapes, distilled, missing, shapes_of
from tuner.distil.text import python_text

__all__ = ["Distilled", "Losses", "Shapes", "distilled", "missing", "python_text", "shapes_of"]
