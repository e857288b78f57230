"""A replica on several ranks: collectives, rendezvous and failure handling."""
