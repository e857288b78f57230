"""``aiperf study``: contribution of each of several factors, alone and in combination."""
