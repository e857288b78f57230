"""The morphisms, their registry, and growth by several of them."""
