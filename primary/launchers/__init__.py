"""Launchers: start and monitor replicas on this machine or through a scheduler."""
