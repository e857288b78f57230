"""Starting replicas and following them: on this machine, or through a scheduler."""
