"""Rows with common prefixes as one tree of tokens: the tree, its attention and verl's engine.

The last two import torch, so this face has the tree alone.
"""

from typing import TYPE_CHECKING

from ltrain_instrument.face import open_face

if TYPE_CHECKING:
    from ltrain_train.learner.prefix_tree.tree import (
        Packs,
        PrefixTree,
        build_prefix_tree,
        pack_rows,
        supports_prefix_tree,
    )

open_face(__name__)
