"""Network morphism: the initial networks, the transformations that keep a function, the search."""
