"""The morphisms, a file for each; their registry; growing by several of them."""
