"""What a site's administrators need: batch script template, local cluster, constraints."""
