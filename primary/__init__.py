"""The control side: command line, dispatch, watching, REST service, report, verification."""
