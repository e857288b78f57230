"""Network morphism: initial networks, function-preserving morphisms, architecture search."""
