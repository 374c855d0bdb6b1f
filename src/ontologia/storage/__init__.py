"""Backends, and the ports they implement."""
