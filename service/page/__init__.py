"""Live page: static files for browsers, without a build step, which show data from the REST API."""
