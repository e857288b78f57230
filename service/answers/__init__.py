"""What is answered of one run: each a question, a pure function of a view, and its typed answer."""
