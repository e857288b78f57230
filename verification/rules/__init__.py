"""What verification checks: a file for each family of rules, a function for each rule."""
