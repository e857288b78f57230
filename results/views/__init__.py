"""What a run says of itself: one read interface, and what shows it on a terminal."""
