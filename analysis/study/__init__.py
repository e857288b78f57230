"""``aiperf study``: what each of several factors contributes, alone and within the whole."""
